"""`smdistributed.dataparallel.torch`, on Markstep."""

__all__: list[str] = []
