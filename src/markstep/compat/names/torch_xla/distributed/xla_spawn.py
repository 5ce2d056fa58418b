"""`torch_xla.distributed.xla_spawn`: starts a script in several processes."""

from markstep.xla.launcher import xla_spawn as main

__all__ = ["main"]


if __name__ == "__main__":
    main()
