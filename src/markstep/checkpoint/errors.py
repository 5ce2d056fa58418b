"""What saving and loading raise."""


class CheckpointError(RuntimeError):
    """A checkpoint could not be saved or loaded, or does not fit what it is loaded into. The message says which and why."""
