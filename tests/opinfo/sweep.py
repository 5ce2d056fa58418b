"""Runs every operator of PyTorch's own database eagerly and under Markstep, and compares all bits."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from tests.same import difference
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

import markstep
from markstep.engine import report

STEPS = 4
SAMPLES = 4
_SCALED = {torch.float32, torch.float64, torch.complex64, torch.complex128}
EXACT = {"backend": "interpreter", "rng": "torch"}

# Operators that cannot be compared, by full name, with the reason.
_UNINITIALISED = "returns uninitialised memory: two eager runs differ"
_GELSY = "LAPACK's gelsy depends on where its arguments lie in memory: two eager runs differ"
EXCLUDED = {
    "empty": _UNINITIALISED,
    "empty_like": _UNINITIALISED,
    "empty_permuted": _UNINITIALISED,
    "empty_strided": _UNINITIALISED,
    "new_empty": _UNINITIALISED,
    "new_empty_strided": _UNINITIALISED,
    "linalg.lstsq": _GELSY,
    "linalg.lstsq.grad_oriented": _GELSY,
}


@dataclass
class Outcome:
    """What became of one operator.

    Attributes:
        samples: how many sample inputs were compared, in-place forms counted apart.
        raised: of these, for how many eager execution raises an error.
        predicted: for how many of the others the whole step was predicted and replayed from the third time on.
        refused: what ended a program inside the step, with how many samples met it.
        failures: differences from eager.
    """

    samples: int = 0
    raised: int = 0
    predicted: int = 0
    refused: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


def full_name(op: OpInfo) -> str:
    """Name with variant: unique in the database."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def operators() -> list[tuple[OpInfo, torch.dtype]]:
    """Every operator that runs on a CPU at all and can be compared, with float32 or else another dtype that it takes."""
    found = []
    for op in common_methods_invocations.op_db:
        dtypes = sorted(op.supported_dtypes("cpu"), key=lambda d: (d != torch.float32, d.is_complex, str(d)))
        if dtypes and full_name(op) not in EXCLUDED:
            found.append((op, dtypes[0]))
    return found


def sweep(op: OpInfo, dtype: torch.dtype) -> Outcome:
    """Compares one operator, and its in-place form if it has one, on a few sample inputs."""
    # The database seeds torch's generator inside of random operators; here every step is seeded before it.
    common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
    outcome = Outcome()
    differentiable = op.supports_autograd and (dtype.is_floating_point or dtype.is_complex)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        samples = _choose(list(op.sample_inputs("cpu", dtype, requires_grad=differentiable)))
        for i, sample in enumerate(samples):
            for form in (op.op, op.inplace_variant):
                if form is not None:
                    text = _compare(outcome, form, sample, form is op.inplace_variant)
                    if text:
                        outcome.failures.append(f"{'in-place, ' if form is op.inplace_variant else ''}sample {i}: {text}")
    return outcome


def _choose(samples: list[SampleInput]) -> list[SampleInput]:
    wanted = os.environ.get("OPINFO_SAMPLES", str(SAMPLES))
    n = len(samples) if wanted == "all" else min(int(wanted), len(samples))
    return [samples[i * len(samples) // n] for i in range(n)]


def _compare(outcome: Outcome, form: Callable[..., Any], sample: SampleInput, inplace: bool) -> str | None:
    def step(given: tuple[Any, ...]) -> Any:
        (first, *rest), kwargs = given
        if inplace:
            first = first.clone()
        result = sample.output_process_fn_grad(form(first, *rest, **kwargs))
        return result, _gradients(result, given)

    want = _train(step, sample)
    figures = report.reset()
    got = _train(markstep.compile(step, **EXACT), sample)
    outcome.samples += 1
    if any(isinstance(found, type) for found, *_ in want):
        outcome.raised += 1
        figures = report.Report()
    cuts = {reason for reason, _ in figures.boundaries} - {"end of the step"}
    for reason in cuts:
        outcome.refused[reason] = outcome.refused.get(reason, 0) + 1
    outcome.predicted += figures.compiled_steps >= STEPS - 2 and not cuts
    for k, (a, b) in enumerate(zip(want, got, strict=True)):
        if text := difference(a, b):
            return f"step {k}: {text}"
    return None


def _train(step: Callable[..., Any], sample: SampleInput) -> list[Any]:
    results = []
    for k in range(STEPS):
        given = _fresh(((sample.input, *sample.args), sample.kwargs), 1 + k / 64)
        torch.manual_seed(k)
        try:
            found = step(given)
        except Exception as error:  # noqa: BLE001 - whatever eager raises, Markstep must raise too
            found = type(error)
        results.append((found, given, torch.get_rng_state()))
    return results


def _gradients(result: Any, given: Any) -> Any:
    outs = [t for t in _tensors(result) if t.requires_grad]
    leaves = [t for t in _tensors(given) if t.requires_grad]
    if not outs or not leaves:
        return None
    losses = [(torch.view_as_real(o) if o.is_complex() else o).square().sum() for o in outs]
    return torch.autograd.grad(losses, leaves, allow_unused=True)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (t for t in tree_leaves(tree) if isinstance(t, torch.Tensor))


def _fresh(tree: Any, scale: float) -> Any:
    """New tensors of the same layout and aliasing, with floating-point values times `scale`."""
    storages: dict[int, torch.UntypedStorage] = {}

    def copy(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        source = t.detach()
        if t.layout is not torch.strided or t.is_conj() or t.is_neg():
            return source.clone().requires_grad_(t.requires_grad)
        storage = source.untyped_storage()
        if storage._cdata not in storages:
            storages[storage._cdata] = storage.clone()
            if t.dtype in _SCALED:
                whole = torch.empty(0, dtype=t.dtype).set_(storages[storage._cdata])
                whole.mul_(scale)
        out = torch.empty(0, dtype=t.dtype).set_(storages[storage._cdata], t.storage_offset(), t.shape, t.stride())
        return out.requires_grad_(t.requires_grad)

    return tree_map(copy, tree)
