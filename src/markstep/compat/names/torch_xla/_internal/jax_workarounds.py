"""`torch_xla._internal.jax_workarounds`: JAX: not supported."""

from markstep.xla.notices import unsupported

_INSTEAD = "write it with PyTorch operators, which Markstep compiles"
jax_env_context = unsupported("_internal.jax_workarounds.jax_env_context", _INSTEAD)
jax_import_guard = unsupported("_internal.jax_workarounds.jax_import_guard", _INSTEAD)
requires_jax = unsupported("_internal.jax_workarounds.requires_jax", _INSTEAD)

__all__ = ["jax_env_context", "jax_import_guard", "requires_jax"]
