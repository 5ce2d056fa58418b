"""`torch_xla.distributed.sm_dist`: starts a script in several processes of a SageMaker job."""

from markstep.xla.launcher import sm_dist as main

__all__ = ["main"]


if __name__ == "__main__":
    main()
