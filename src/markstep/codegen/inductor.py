"""The only module that touches torch._inductor: compiles a functional graph, packs what it made, loads it again."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
import shutil
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Runner = Callable[[list[Tensor]], Any]


def decompositions() -> Any:
    """TorchInductor's table of decompositions."""
    import torch._inductor.lowering  # noqa: F401  some decompositions use it without importing it
    from torch._inductor.decomposition import select_decomp_table

    return select_decomp_table()


def fallbacks(names: set[str]) -> frozenset[str]:
    """Those of the named operators for which TorchInductor has no lowering of its own, nor a decomposition."""
    from torch._inductor.lowering import fallbacks as without_lowering

    without = {op.name() for op in without_lowering if isinstance(op, torch._ops.OpOverload)}
    decomposed = {op.name() for op in decompositions() if isinstance(op, torch._ops.OpOverload)}
    return frozenset(names & without - decomposed)


@contextlib.contextmanager
def _async_compile(replacement: type) -> Iterator[None]:
    """Generated modules that are executed meanwhile find `replacement` in place of TorchInductor's AsyncCompile."""
    from torch._inductor import async_compile

    library: Any = async_compile
    original, library.AsyncCompile = library.AsyncCompile, replacement
    try:
        yield
    finally:
        library.AsyncCompile = original


def compile_graph(graph: torch.fx.GraphModule, compilers: int) -> str:
    """Compiles a functional graph of fake tensors, with so many compilers of kernels side by side.

    C++ kernels may still be compiled when it returns, while the next graph is worked on; `pack` waits for them.

    Returns:
        Python source with a function `call(args)`; loading it needs the kernels that `pack` collects.
    """
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.compile_fx import _recursive_joint_graph_passes, compile_fx_inner

    class Later(AsyncCompile):
        def wait(self, scope: dict[str, Any]) -> None:
            """`pack` does."""

    output = graph.graph.output_node()
    results: Any = output.args[0]
    output.meta["user_visible_output_idxs"] = list(range(len(results)))
    example = [n.meta["val"] for n in graph.graph.find_nodes(op="placeholder")]
    fake_mode = torch._subclasses.fake_tensor.FakeTensorMode() if not example else example[0].fake_mode
    settings = {"fallback_random": True, "fx_graph_cache": False, "static_weight_shapes": True, "compile_threads": compilers}
    with (
        _async_compile(AsyncCompile if torch.cuda.is_available() else Later),
        torch._guards.tracing(torch._guards.TracingContext(fake_mode)),
        torch._inductor.config.patch(settings),
        fake_mode,
    ):
        _recursive_joint_graph_passes(graph)
        made = compile_fx_inner(
            graph,
            example,
            static_input_idxs=tuple(range(len(example))),
            is_inference=True,
            cudagraphs=torch._inductor.utils.BoxedBool(False),
        )
    source = getattr(made, "source_code", None)
    if not isinstance(source, str):
        raise RuntimeError(f"TorchInductor gave {type(made).__name__} without Python source")
    if getattr(made, "constants", None):
        raise RuntimeError("the compiled graph holds tensor constants")
    return source


def pack(source: str, folder: Path) -> None:
    """Copies the kernels that `source` needs into `folder`; they are compiled already."""

    def keep(argtypes: list[str], code: str, function: Any) -> None:
        target = folder / _kernel_file(argtypes, code)
        if not target.exists():
            shutil.copyfile(function.__self__.__file__, target)
            target.chmod(0o600)

    _execute(source, None, keep)


def load(source: str, folder: Path, products: Any = None) -> Runner:
    """The function `call(args)` of a compiled graph; C++ kernels come from `folder`, nothing is compiled.

    What `products` holds is called for matrix products in place of PyTorch's functions.
    """
    module = _execute(source, folder, None)
    if products is not None and (used := _extern_names(source)):
        theirs = module.extern_kernels
        module.extern_kernels = types.SimpleNamespace(**{n: getattr(products, n, None) or getattr(theirs, n) for n in used})
    call: Runner = module.call
    return call


def _kernel_file(argtypes: list[str], code: str) -> str:
    return hashlib.sha256("\n".join([*argtypes, code]).encode()).hexdigest()[:32] + ".so"


def _execute(source: str, folder: Path | None, keep: Callable[[list[str], str, Any], None] | None) -> Any:
    """Runs the generated module with kernels taken from `folder`, or compiled as usual and shown to `keep`."""
    module: Any = types.ModuleType("markstep_compiled_" + hashlib.sha256(source.encode()).hexdigest()[:16])
    if folder is not None:
        light = _without_imports(source)
        if light is not None:
            module.__dict__.update(_STAND_INS, AsyncCompile=lambda: _Stored(folder))
            exec(compile(light, f"<{module.__name__}>", "exec"), module.__dict__)
            return module
    from torch._inductor.async_compile import AsyncCompile
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    class Kernels(AsyncCompile):
        def cpp_pybinding(self, argtypes: list[str], source_code: str) -> Any:
            if folder is not None:
                return _load_kernel(folder / _kernel_file(argtypes, source_code))
            function = CppPythonBindingsCodeCache.load_pybinding(argtypes, source_code)
            assert keep is not None
            keep(argtypes, source_code, function)
            return function

    with _async_compile(Kernels):
        exec(compile(source, f"<{module.__name__}>", "exec"), module.__dict__)
    return module


# What generated CPU code imports from TorchInductor, which takes 1.5 s and 200 MB to load and which it hardly uses.
_IMPORT = re.compile(r"^from torch\._inductor\.[\w.]+ import .*\n", re.MULTILINE)
_KNOWN_IMPORTS = {"run_intermediate_hooks", "maybe_profile", "_align as align", "AsyncCompile", "extern_kernels"}
_EXTERN = {"mm": torch.mm, "bmm": torch.bmm, "addmm": torch.addmm, "baddbmm": torch.baddbmm, "convolution": torch.convolution}
_STAND_INS = {"extern_kernels": types.SimpleNamespace(**_EXTERN), "align": lambda size: (size + 63) // 64 * 64}


class _Stored:
    """In place of TorchInductor's AsyncCompile: every kernel is there already."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def cpp_pybinding(self, argtypes: list[str], source_code: str) -> Any:
        return _load_kernel(self.folder / _kernel_file(argtypes, source_code))

    def wait(self, scope: dict[str, Any]) -> None:
        """All is there."""


def _extern_names(source: str) -> set[str]:
    return set(re.findall(r"\bextern_kernels\.(\w+)", source))


def _without_imports(source: str) -> str | None:
    """Generated code without its imports of TorchInductor; None when it needs more than the stand-ins offer."""
    head = source.partition("if __name__ ==")[0].split("\ndef get_args")[0]
    names = {line.strip().partition(" import ")[2] for line in _IMPORT.findall(head)}
    light = _IMPORT.sub("", head)
    if not names <= _KNOWN_IMPORTS or not _extern_names(head) <= set(_EXTERN) or "torch._inductor" in light:
        return None
    return light


_kernels: dict[str, Any] = {}


def _load_kernel(path: Path) -> Any:
    if path.name not in _kernels:
        os.environ["_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR"] = str(
            torch._C._dynamo.guards._torchinductor_pyobject_tensor_data_ptr  # type: ignore[attr-defined]
        )
        spec = importlib.util.spec_from_file_location("kernel", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        _kernels[path.name] = module.kernel
    return _kernels[path.name]
