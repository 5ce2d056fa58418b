"""Runs one training loop eagerly and under Markstep and compares everything that it leaves, bit for bit."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

import markstep
from markstep.codegen.plan import Piece, Plan, make_plan
from markstep.engine import patches, report
from markstep.engine.ending import Ending, endings_below
from markstep.engine.options import resolve
from markstep.engine.site import Site
from markstep.record import native, verify
from markstep.record.program import Program
from markstep.record.schema import Kind, facts

Step = Callable[[int], Any]
Make = Callable[..., tuple[Step, Any]]
EXACT = {"backend": "interpreter", "rng": "torch"}


class _Count(TorchDispatchMode):
    """Counts the operator calls below autograd that compute something and can be deferred."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __enter__(self) -> _Count:  # like the engine's own mode: pushed, it would change the way that autograd takes
        module = native.load(resolve({}).prepared_cache_dir())
        patches.install(module)
        module.intercept(self, None, True)
        return self

    def __exit__(self, *exception: object) -> None:
        native.load(resolve({}).prepared_cache_dir()).intercept(None, None, True)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += facts(func).kind not in (Kind.PASS, Kind.VALUE)
        return func(*args, **(kwargs or {}))


def compare(
    make: Make,
    steps: int = 20,
    *,
    recorded: int | None = 4,
    share: float = 0.9,
    after: Callable[[int, Any], None] | None = None,
    wraps_itself: bool = False,
    **options: Any,
) -> report.Report:
    """Trains twice from the same seed and compares results, state and torch's generator after every step.

    Args:
        make: builds everything anew and returns (step function of the step number, state to compare). The state may
            hold modules, optimizers, schedulers, tensors, numbers, nested in lists and dictionaries.
        steps: how many.
        recorded: at most so many steps may have run eagerly; all others must have been predicted and replayed.
            None: the caller looks at the report itself.
        share: at least this part of the calls of the last step must have been replayed from programs.
        after: called between steps with the step number and the state.
        wraps_itself: `make` is called with a function to apply to whatever should run under Markstep.
        **options: of `markstep.compile`, in place of those that promise eager's bits.

    Returns:
        The report of the run under Markstep.
    """
    counter = _Count()
    want, _ = _train(make, lambda fn: fn, steps, after, wraps_itself, counter)
    found = report.reset()
    with collect_sites() as sites:
        wrap = functools.partial(markstep.compile, **{**EXACT, **options})
        got, ran = _train(make, wrap, steps, after, wraps_itself, nullcontext())
    check_programs(sites)
    for i, (a, b) in enumerate(zip(want, got, strict=True)):
        assert_same(a, b, f"step {i}" if i < steps else f"result of step {i - steps}, seen again after the last step")
    if recorded is None:
        return found
    assert found.eager_steps <= recorded, f"{found.eager_steps} steps ran eagerly, at most {recorded} were expected\n{found}"
    assert found.compiled_steps, f"no step was replayed\n{found}"
    assert ran >= share * counter.calls, f"the last step has {counter.calls} calls, {ran} ran from programs\n{found}"
    return found


def _train(
    make: Make,
    wrap: Callable[[Any], Any],
    steps: int,
    after: Callable[[int, Any], None] | None,
    wraps_itself: bool,
    around_last: AbstractContextManager[Any],
) -> tuple[list[dict[str, Any]], int]:
    """Snapshots after every step and of all results at the end, and how many calls programs ran in the last step."""
    torch.manual_seed(0)
    if wraps_itself:
        step, state = make(wrap)
    else:
        step, state = make()
        step = wrap(step)
    torch.manual_seed(1)
    snapshots, kept, before = [], [], 0
    for i in range(steps):
        before = replayed_calls()
        with around_last if i == steps - 1 else nullcontext():
            result = step(i)
        snapshots.append(snapshot({"result": result, "state": state, "generator": torch.get_rng_state()}))
        kept.append(result)
        if after is not None:
            after(i, state)
    ran = replayed_calls() - before
    return [*snapshots, *map(snapshot, kept)], ran


def replayed_calls() -> int:
    """How many operator calls have run from programs so far."""
    return sum(p.calls * p.runs for p in report.current().programs)


@contextmanager
def collect_sites() -> Iterator[list[Site]]:
    """Every site that is made inside."""
    sites: list[Site] = []
    original = Site.__init__

    def init(self: Site, *args: Any) -> None:
        original(self, *args)
        sites.append(self)

    Site.__init__ = init  # type: ignore[method-assign]
    try:
        yield sites
    finally:
        Site.__init__ = original  # type: ignore[method-assign]


def check_programs(sites: list[Site]) -> list[Ending]:
    """Verifies every recorded program, and that it prints; returns where they end."""
    endings = [e for site in sites for e in endings_below(site.root)]
    assert endings, "nothing was recorded"
    for ending in endings:
        program = ending.program()
        verify(program)
        assert str(program).startswith(f"program: {len(program.calls)} calls")
    return endings


def snapshot(value: Any) -> dict[str, Any]:
    """Copies of all values in modules, optimizers and nested containers, by path."""
    return dict(_flatten("", value))


def _flatten(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield path, value.detach().clone(memory_format=torch.preserve_format)
        yield f"{path}.meta", (value.dtype, tuple(value.shape), value.stride(), value.requires_grad, type(value))
        if value.is_leaf and value.grad is not None:
            yield from _flatten(f"{path}.grad", value.grad)
    elif isinstance(value, torch.nn.Module):
        yield f"{path}.training", value.training
        for name, tensor in (*value.named_parameters(), *value.named_buffers()):
            yield from _flatten(f"{path}.{name}", tensor)
    elif hasattr(value, "state_dict"):
        yield from _flatten(f"{path}.state_dict", value.state_dict())
    elif isinstance(value, Mapping):
        yield f"{path}.keys", list(value)
        for key, v in value.items():
            yield from _flatten(f"{path}.{key}", v)
    elif isinstance(value, (list, tuple)):
        yield f"{path}.length", len(value)
        for i, v in enumerate(value):
            yield from _flatten(f"{path}.{i}", v)
    else:
        yield path, value


def assert_same(want: dict[str, Any], got: dict[str, Any], where: str) -> None:
    """Equal paths and equal bits."""
    assert list(want) == list(got), f"{where}: other things are there: {set(want) ^ set(got)}"
    for path, a in want.items():
        b = got[path]
        if not isinstance(a, torch.Tensor):
            assert a == b or (a != a and b != b), f"{where}: {path}: eager has {a}, Markstep {b}"
        elif not same_bits(a, b):
            assert a.shape == b.shape and a.dtype == b.dtype, f"{where}: {path}: {a.dtype}{a.shape} against {b.dtype}{b.shape}"
            raise AssertionError(f"{where}: {path}: {int((a != b).sum())} of {a.numel()} values differ:\n{a}\n{b}")


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Equal dtype, shape and values to the last bit; NaNs are compared as bits too."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return (
        a.resolve_conj()
        .resolve_neg()
        .contiguous()
        .flatten()
        .view(torch.uint8)
        .equal(b.resolve_conj().resolve_neg().contiguous().flatten().view(torch.uint8))
    )


def program_of(step: Callable[[], Any]) -> Program:
    """The only program of a step that does the same every time.

    Raises:
        ValueError: it has several.
    """
    with collect_sites() as sites:
        followed = markstep.compile(step, backend="interpreter", rng="torch")
        for _ in range(4):
            followed()
    (program,) = [ending.program() for site in sites for ending in endings_below(site.root)]
    return program


def only_graph(program: Program) -> tuple[Plan, Piece]:
    """The plan of a program that is one graph, with `rng="torch"`, and that piece."""
    plan = make_plan(program, "torch")
    (piece,) = (p for p in plan.pieces if p.graph)
    return plan, piece
