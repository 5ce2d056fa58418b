"""The print of rows."""

from __future__ import annotations

from collections.abc import Callable

from bench.rows import Row

_LONGEST = 100  # characters of a name

LEGEND = """\
ratio      step time over eager's, median of rounds in which all take turns (quartiles); below 1 is faster than eager
peak       most memory of the process in MiB, with full caches; alloc: of torch's allocator on CUDA
first      seconds of the first step, empty caches;  compile: seconds of compilation, empty caches
cold/warm  seconds until full speed, with empty and with full caches; where compilation goes on beside training, training
           rests after 20 s until it is done
before     step time over eager's while compilation is still under way: median/mean
loss diff  largest relative difference to eager's losses (dropout masks differ unless MARKSTEP_RNG=torch)
calls      operator calls of a step;  trace: microseconds a call that following them adds to eager's Python, bounds
           from below and above
/floor     step time over what its matrix products and the traffic of its parameters cost alone (suite full, or --where)"""


def _number(name: str, digits: int, factor: float = 1.0) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = row.get(name)
        return "-" if value is None else f"{value * factor:.{digits}f}"

    return text


def _ratio(row: Row) -> str:
    return f"{row['ratio_to_eager']:.3f} ({row['ratio_low']:.3f}-{row['ratio_high']:.3f})"


def _difference(row: Row) -> str:
    value = row["loss_difference"]
    return "not finite" if value is None else f"{value:.1e}"


def _before(row: Row) -> str:
    middle, mean = row.get("before_ready_ratio"), row.get("before_ready_mean_ratio")
    return "-" if middle is None or mean is None else f"{middle:.2f}/{mean:.2f}"


def _trace(row: Row) -> str:
    low, high = row.get("trace_us_per_call"), row.get("predict_us_per_call")
    return "-" if low is None or high is None else f"{low:.1f}-{high:.1f}"


_COLUMNS: tuple[tuple[str, Callable[[Row], str]], ...] = (
    ("step ms", _number("step_ms", 2)),
    ("ratio", _ratio),
    ("peak", _number("peak_bytes", 0, 2**-20)),
    ("alloc", _number("peak_allocated_bytes", 0, 2**-20)),
    ("first", _number("first_step_s", 2)),
    ("compile", _number("compile_s", 1)),
    ("cold", _number("cold_s", 1)),
    ("warm", _number("warm_s", 1)),
    ("before", _before),
    ("loss diff", _difference),
    ("calls", _number("calls", 0)),
    ("trace", _trace),
    ("/floor", _number("over_floor", 2)),
)


def _name(row: Row) -> list[str]:
    contender = row["contender"] + (f" ({row['optimizer']})" if "optimizer" in row else "")
    return [row["model"], row["dtype"], contender]


def table(rows: list[Row]) -> str:
    """Rows as aligned text; a failed one shows the last line of its error."""
    head = ["model", "dtype", "contender", *(title for title, _ in _COLUMNS)]
    body = [_name(row) + ([] if "error" in row else [text(row) for _, text in _COLUMNS]) for row in rows]
    widths = [max(len(line[i]) for line in [head, *body] if i < len(line)) for i in range(len(head))]
    lines = []
    for row, cells in zip([None, *rows], [head, *body], strict=True):
        padded = [c.ljust(w) if i < 3 else c.rjust(w) for i, (c, w) in enumerate(zip(cells, widths, strict=False))]
        failed = f"  failed: {(row['error'] or 'no turn').splitlines()[-1]}" if row and "error" in row else ""
        lines.append(("  ".join(padded) + failed).rstrip())
    return "\n".join(lines)


def details(rows: list[Row]) -> str:
    """What the floor of every case consists of, and where the time of the split steps goes, as far as it was measured."""
    return "\n".join(line for row in rows for line in (*_floor_lines(row), *_where_lines(row)))


def _floor_lines(row: Row) -> list[str]:
    floor = row.get("floor", {})
    if row["contender"] != "eager" or "floor_ms" not in floor:
        return []
    head = (
        f"{row['model']} {row['dtype']}: floor {floor['floor_ms']:.1f} ms, of which products {floor['products_ms']:.1f}, "
        f"parameters {floor['bytes_ms']:.1f} (a copy moves {floor['copy_gb_s']:.1f} GB/s)"
    )
    missing = f"; not timed: {', '.join(floor['not_timed'])}" if floor["not_timed"] else ""
    return ["", head + missing, *(f"  {ms:9.2f} ms  {name}" for name, ms in floor["dearest"])]


def _where_lines(row: Row) -> list[str]:
    where = row.get("where")
    if where is None:
        return []
    lines = ["", f"{row['model']} {row['dtype']} {row['contender']}: a step of {where['step_ms']:.1f} ms under the profiler"]
    groups = sorted(where["groups"].items(), key=lambda item: -item[1])
    lines += [f"  {ms:9.2f} ms  {100 * ms / where['step_ms']:5.1f} %  {name}" for name, ms in groups]
    return [*lines, "  dearest:", *(f"  {ms:9.2f} ms  {name[:_LONGEST]}" for name, ms in where["dearest"])]
