"""`torch_xla.utils.checkpoint_tagger`: marking a checkpoint: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "use torch.save"
main = unsupported("utils.checkpoint_tagger.main", _INSTEAD)

__all__ = ["main"]
