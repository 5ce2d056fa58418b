"""`smdistributed.dataparallel`, on Markstep."""

__version__ = "2.5.0"
__all__ = ["__version__"]
