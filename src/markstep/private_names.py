"""Names of PyTorch that are not public and that Markstep relies on, in one place.

A test resolves every one of them and fails with the name that is gone. C++ names are checked by building
`record/native_code`, which the first test of a session does.
"""

from __future__ import annotations

import importlib

CHECKED_ON = ("2.11.0", "2.13.0", "2.14.1")
"""Versions of torch that have all of these names; docs/benchmarks.md says which tests passed on each."""

NAMES = (
    # record and engine
    "torch.utils._python_dispatch.TorchDispatchMode",
    "torch.utils._python_dispatch._disable_current_modes",
    "torch.utils._pytree.tree_flatten",
    "torch._ops.OpOverload",
    "torch._C._ExcludeDispatchKeyGuard",
    "torch._C.DispatchKey.ADInplaceOrView",
    "torch._C.DispatchKeySet",
    "torch._C._set_grad_enabled",
    "torch._C._parse_dispatch_key",
    "torch.Tensor._make_subclass",
    "torch.utils.data.dataloader._BaseDataLoaderIter.__next__",
    "torch._VF",
    "torch._C._IncludeDispatchKeyGuard",
    # xla
    "torch._register_device_module",
    "torch._C._nn._parse_to",
    "torch._neg_view",
    "torch._C._distributed_c10d._create_work_from_future",
    "torch._C._profiler._ExperimentalConfig",
    "torch.distributed.distributed_c10d._get_default_store",
    "torch.utils._foreach_utils",
    # distributed
    "torch.autograd.Variable._execution_engine.queue_callback",
    "torch.distributed.ProcessGroup._get_backend",
    "torch.nn.parallel.DistributedDataParallel.join_hook",
    "torch.nn.parallel.DistributedDataParallel.register_comm_hook",
    # codegen
    "torch._subclasses.fake_tensor.FakeTensorMode",
    "torch.fx.experimental.proxy_tensor.make_fx",
    "torch._guards.TracingContext",
    "torch._guards.tracing",
    "torch._inductor.compile_fx.compile_fx_inner",
    "torch._inductor.compile_fx._recursive_joint_graph_passes",
    "torch._inductor.decomposition.select_decomp_table",
    "torch._inductor.async_compile.AsyncCompile.cpp_pybinding",
    "torch._inductor.codecache.CppPythonBindingsCodeCache.load_pybinding",
    "torch._inductor.config.fallback_random",
    "torch._inductor.config.fx_graph_cache",
    "torch._inductor.output_code.CompiledFxGraph",
    "torch._inductor.utils.BoxedBool",
    "torch._inductor.lowering.fallbacks",
    "torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr",
)


def resolve(name: str) -> object:
    """The object with a dotted name.

    Raises:
        AttributeError: it does not exist in this version of torch; the message holds the whole name.
    """
    parts = name.split(".")
    value: object = importlib.import_module(parts[0])
    for i, part in enumerate(parts[1:], 1):
        try:
            value = getattr(value, part)
        except AttributeError:
            try:
                value = importlib.import_module(".".join(parts[: i + 1]))
            except ImportError:
                raise AttributeError(f"torch has no {name} any more: it ends at {'.'.join(parts[:i])}") from None
    return value
