"""The floor: what the matrix products of a step and the traffic of its parameters cost alone, whoever does them.

The step is recorded on the model as it is (two eager steps and one replayed call by call). Every distinct product or
convolution of the record is then timed alone, warm, in every layout of its operands and with every library at hand, and
the shortest of all repetitions counts, as often as the product occurs. To these are added the bytes that AdamW
must move (parameters and both moments read and written, gradients read) at the bandwidth of a copy. Attention in
one operator counts as its products (two forward, four backward), a recurrent layer as the products of its gates.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bench.models import Case
from bench.training import Training

_WORDS_OF_ADAMW = 7  # for each parameter: parameter and two moments in and out, gradient in
_COPIED = 64 << 20  # elements of the copy that measures the bandwidth
_SECONDS, _CALLS = 0.03, 10  # a variant is repeated for so long and so often at least,
_PATIENCE_S = 0.5  # but no longer than this

Job = tuple[str, Callable[[], Any]]  # which variant it is, and the variant


class Product(NamedTuple):
    """`batch` products (m, k) times (k, n)."""

    batch: int
    m: int
    k: int
    n: int
    dtype: torch.dtype

    def __str__(self) -> str:
        batch = f"{self.batch} x " if self.batch > 1 else ""
        return f"{batch}{self.m}x{self.k} @ {self.k}x{self.n} {_name(self.dtype)}"

    def jobs(self, device: str) -> Iterable[Job]:
        """The same product in every layout and with every library."""
        b, m, k, n, dtype = self
        if b > 1:
            out = torch.empty(b, m, n, dtype=dtype, device=device)
            for a, left in _layouts((b, m, k), dtype, device):
                for c, right in _layouts((b, k, n), dtype, device):
                    yield f"{a} @ {c}", lambda left=left, right=right: torch.bmm(left, right, out=out)
            return
        out = torch.empty(m, n, dtype=dtype, device=device)
        for a, left in _layouts((m, k), dtype, device):
            for c, right in _layouts((k, n), dtype, device):
                yield f"{a} @ {c}", lambda left=left, right=right: torch.mm(left, right, out=out)
        if device == "cpu" and torch.backends.mkldnn.is_available():
            yield from _packed(m, k, n, dtype)


class Convolution(NamedTuple):
    """A convolution, or with `grads` (of input, weight, bias) the gradients of one."""

    image: tuple[int, ...]
    weight: tuple[int, ...]
    settings: tuple[Any, ...]
    dtype: torch.dtype
    grads: tuple[bool, ...] | None
    output: tuple[int, ...]

    def __str__(self) -> str:
        kind = "convolution" if self.grads is None else f"its {sum(self.grads[:2])} gradients"
        return f"{kind} {_sizes(self.image)} by {_sizes(self.weight)} {_name(self.dtype)}"

    def jobs(self, device: str) -> Iterable[Job]:
        """In both memory formats."""
        stride, padding, dilation, transposed, output_padding, groups = self.settings
        for memory_format in (torch.contiguous_format, torch.channels_last):
            if len(self.image) != 4 and memory_format is torch.channels_last:
                continue

            def make(shape: tuple[int, ...], memory_format: torch.memory_format = memory_format) -> Tensor:
                return torch.randn(shape, dtype=self.dtype, device=device).contiguous(memory_format=memory_format)

            name = str(memory_format).removeprefix("torch.")
            image, weight = make(self.image), make(self.weight)
            if self.grads is None:
                yield (
                    name,
                    lambda image=image, weight=weight: torch.convolution(
                        image, weight, None, stride, padding, dilation, transposed, output_padding, groups
                    ),
                )
            else:
                grad, mask = make(self.output), [*self.grads[:2], False]
                yield (
                    name,
                    lambda grad=grad, image=image, weight=weight, mask=mask: torch.ops.aten.convolution_backward(
                        grad, image, weight, None, stride, padding, dilation, transposed, output_padding, groups, mask
                    ),
                )


def _packed(m: int, k: int, n: int, dtype: torch.dtype) -> Iterable[Job]:
    """With oneDNN and the right operand in its layout."""
    ops: Any = torch.ops.mkldnn
    left, right = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
    try:
        weight = ops._reorder_linear_weight(right.to_mkldnn(), m)
        ops._linear_pointwise(left, weight, None, "none", [], "")
    except RuntimeError:  # not for this dtype, or not on this processor
        return
    yield "rows @ packed", lambda: ops._linear_pointwise(left, weight, None, "none", [], "")


def _layouts(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> list[tuple[str, Tensor]]:
    rows = torch.randn(shape, dtype=dtype, device=device)
    return [("rows", rows), ("columns", rows.mT.contiguous().mT)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sizes(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


def record(case: Case, dtype: str, device: str) -> Any:
    """The program of a training step with its true sizes.

    Raises:
        RuntimeError: the step could not be recorded.
    """
    import markstep
    from markstep.engine.ending import Interpreted

    training = Training(case, dtype, device)
    training.train_step = markstep.compile(training.plain_step, backend="interpreter", rng="torch")
    programs: list[Any] = []
    run = Interpreted.run

    def seen(self: Interpreted, session: Any) -> None:
        programs.append(self.program)
        run(self, session)

    Interpreted.run = seen  # type: ignore[method-assign]
    try:
        for _ in range(6):
            if programs:
                return max(programs, key=lambda p: len(p.calls))
            training.advance()
    finally:
        Interpreted.run = run  # type: ignore[method-assign]
    raise RuntimeError("the step was not replayed")


def products_of(program: Any) -> tuple[Counter[Product | Convolution], Counter[str]]:
    """All products and convolutions of a program with their number; and operators that hold some but are not known here."""
    found: Counter[Product | Convolution] = Counter()
    unknown: Counter[str] = Counter()
    for call in program.calls:
        name = call.op._schema.name.removeprefix("aten::")
        shapes = [getattr(a, "meta", (None,))[0] for a in call.args]
        known = _KNOWN.get(name)
        if known is not None:
            dtype = next(a.meta[3] for a in call.args if hasattr(a, "meta"))
            found.update(known(shapes, dtype, call))
        elif any(part in name for part in _SUSPECT):
            unknown[name] += 1
    return found, unknown


def _mm(shapes: list[Any], dtype: torch.dtype, call: Any) -> dict[Any, int]:
    left, right = [s for s in shapes if s is not None][-2:]
    return {Product(1, left[0], left[1], right[1], dtype): 1}


def _bmm(shapes: list[Any], dtype: torch.dtype, call: Any) -> dict[Any, int]:
    left, right = [s for s in shapes if s is not None][-2:]
    return {Product(*left, right[2], dtype): 1}


def _attention(backward: bool) -> Callable[[list[Any], torch.dtype, Any], dict[Any, int]]:
    def products(shapes: list[Any], dtype: torch.dtype, call: Any) -> dict[Any, int]:
        query, key, value = [s for s in shapes if s is not None and len(s) == 4][backward : backward + 3]
        heads, m, n, width = query[0] * query[1], query[2], key[2], query[3]
        inner = Product(heads, m, width, n, dtype)  # scores; their gradient from the output's
        outer = Product(heads, m, n, value[3], dtype)  # output; gradient of the query
        if not backward:
            return Counter([inner, outer])
        across = Product(heads, n, m, width, dtype)  # gradients of key and value
        return Counter([inner, outer, across, across])

    return products


def _recurrent(backward: bool) -> Callable[[list[Any], torch.dtype, Any], dict[Any, int]]:
    def products(shapes: list[Any], dtype: torch.dtype, call: Any) -> dict[Any, int]:
        image, into, across = [s for s in shapes if s is not None][:3]
        steps, batch = image[:2]  # whatever `batch_first` says
        gates, width = into
        rows, hidden = steps * batch, across[1]
        if not backward:
            return {Product(1, rows, width, gates, dtype): 1, Product(1, batch, hidden, gates, dtype): steps}
        return Counter(
            {
                Product(1, rows, gates, width, dtype): 1,
                Product(1, gates, rows, width, dtype): 1,
                Product(1, gates, rows, hidden, dtype): 1,
                Product(1, batch, gates, hidden, dtype): steps,
            }
        )

    return products


def _convolution(shapes: list[Any], dtype: torch.dtype, call: Any) -> dict[Any, int]:
    settings = tuple(tuple(a) if isinstance(a, list) else a for a in call.args[3:9])
    return {Convolution(shapes[0], shapes[1], settings, dtype, None, ()): 1}


def _convolution_backward(shapes: list[Any], dtype: torch.dtype, call: Any) -> dict[Any, int]:
    settings = tuple(tuple(a) if isinstance(a, list) else a for a in call.args[4:10])
    return {Convolution(shapes[1], shapes[2], settings, dtype, tuple(call.args[10]), shapes[0]): 1}


_KNOWN: dict[str, Callable[[list[Any], torch.dtype, Any], dict[Any, int]]] = {
    "mm": _mm,
    "addmm": _mm,
    "bmm": _bmm,
    "baddbmm": _bmm,
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "mkldnn_rnn_layer": _recurrent(False),
    "mkldnn_rnn_layer_backward": _recurrent(True),
}
for _kind in ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention"):
    _KNOWN[f"_scaled_dot_product_{_kind}"] = _attention(False)
    _KNOWN[f"_scaled_dot_product_{_kind}_backward"] = _attention(True)
_SUSPECT = ("mm", "matmul", "conv", "linear_", "attention", "rnn", "lstm", "gru", "mv", "dot")


def floor(case: Case, dtype: str, device: str) -> dict[str, Any]:
    """`products_ms`, `bytes_ms`, `floor_ms` of a step, `copy_gb_s` (read and written), the `dearest` products, `not_timed`."""
    program = record(case, dtype, device)
    found, unknown = products_of(program)
    words = sum(p.numel() * p.element_size() for p in case.build().parameters())
    bandwidth = _copy_bandwidth(device)
    moved = _WORDS_OF_ADAMW * words / bandwidth
    best = {product: _shortest(product.jobs(device), device) for product in found}
    costs = {product: found[product] * seconds for product, (seconds, _) in best.items()}
    dearest = sorted(costs, key=lambda p: -costs[p])[:12]
    products = sum(costs.values())
    return {
        "products_ms": products * 1e3,
        "bytes_ms": moved * 1e3,
        "floor_ms": (products + moved) * 1e3,
        "copy_gb_s": bandwidth / 1e9,
        "dearest": [[f"{found[p]} x {p} ({best[p][1]})", costs[p] * 1e3] for p in dearest],
        "not_timed": sorted(unknown),
    }


def _shortest(jobs: Iterable[Job], device: str) -> tuple[float, str]:
    """Seconds of the best variant; its name, and that of the worst with how many times longer it takes."""
    times = sorted((_time(job, device), name) for name, job in jobs)
    return times[0][0], f"{times[0][1]}; {times[-1][1]} {times[-1][0] / times[0][0]:.1f} times"


def _time(job: Callable[[], Any], device: str) -> float:
    times = [_once(job, device) for _ in range(2)][1:]
    while (len(times) < _CALLS or sum(times) < _SECONDS) and sum(times) < _PATIENCE_S:
        times.append(_once(job, device))
    return min(times)


def _once(job: Callable[[], Any], device: str) -> float:
    start = time.perf_counter()
    job()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def _copy_bandwidth(device: str) -> float:
    source, target = torch.ones(_COPIED, device=device), torch.zeros(_COPIED, device=device)
    return 2 * 4 * _COPIED / _time(lambda: target.copy_(source), device)
