"""Policies that say which modules of a model are wrapped, and the function that follows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Every module."""
    return True


def lambda_auto_wrap_policy(module: nn.Module, recurse: bool, unwrapped_params: int, lambda_fn: Callable[..., bool]) -> bool:
    """Modules that `lambda_fn` chooses."""
    return recurse or lambda_fn(module)


def transformer_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, transformer_layer_cls: set[type[nn.Module]]
) -> bool:
    """Modules of given classes."""
    return recurse or isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    min_num_params: int = 100_000_000,
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
) -> bool:
    """Modules with at least `min_num_params` elements of parameters that are not wrapped yet.

    Args:
        module: the candidate.
        recurse: whether the question is to look inside it.
        unwrapped_params: its elements that are not wrapped yet.
        min_num_params: see above.
        force_leaf_modules: classes that are not looked into; nn.MultiheadAttention by default.
        exclude_wrap_modules: classes that are not wrapped; nn.ModuleList and nn.ModuleDict by default.
    """
    leaves: tuple[type[nn.Module], ...] = (nn.MultiheadAttention,) if force_leaf_modules is None else tuple(force_leaf_modules)
    excluded: tuple[type[nn.Module], ...] = (nn.ModuleList, nn.ModuleDict)
    if exclude_wrap_modules is not None:
        excluded = tuple(exclude_wrap_modules)
    large = unwrapped_params >= min_num_params
    return large and not isinstance(module, leaves if recurse else excluded)


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Callable[..., bool],
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: set[nn.Module],
    ignored_params: set[nn.Parameter],
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wraps modules inside out as the policy says.

    Args:
        module: the model.
        auto_wrap_policy: called with module, recurse and unwrapped_params.
        wrapper_cls: called with a module and `kwargs`.
        ignored_modules: are left alone.
        ignored_params: do not count.
        only_wrap_children: leave `module` itself as it is.
        **kwargs: see above.

    Returns:
        (the module, wrapped or not; how many elements of its parameters are wrapped).
    """
    count = sum(p.numel() for p in module.parameters() if p not in ignored_params)
    if not auto_wrap_policy(module=module, recurse=True, unwrapped_params=count):
        return module, 0
    wrapped = 0
    for name, child in module.named_children():
        if child not in ignored_modules:
            new, inside = recursive_wrap(child, auto_wrap_policy, wrapper_cls, ignored_modules, ignored_params, **kwargs)
            setattr(module, name, new)
            wrapped += inside
    rest = count - wrapped
    if not only_wrap_children and auto_wrap_policy(module=module, recurse=False, unwrapped_params=rest):
        return wrapper_cls(module, **kwargs), count
    return module, wrapped
