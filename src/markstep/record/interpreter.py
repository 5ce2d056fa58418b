"""Runs recorded calls one by one, in order: the reference that every other way of running a program is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

_EXCLUDED = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradCPU)
for _key in torch._C.DispatchKey.__members__.values():
    if _key.name.startswith(("Autograd", "Autocast")) or _key.name == "ADInplaceOrView":
        _EXCLUDED = _EXCLUDED | torch._C.DispatchKeySet(_key)
_fake: Any = torch._C._parse_dispatch_key("Fake")
_EXCLUDED = _EXCLUDED | torch._C.DispatchKeySet(_fake)  # where Markstep intercepts calls


@contextmanager
def below_autograd() -> Iterator[None]:
    """Operators called inside run as recorded: no autograd, no autocast, no dispatch mode of the surrounding code.

    The default dtype is what it was when they were recorded.
    Grad mode is restored afterwards; with autograd's kernels out of the way it only matters to kernels that ask for it.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with (
            torch.utils._python_dispatch._disable_current_modes(),
            torch.no_grad(),
            torch._C._ExcludeDispatchKeyGuard(_EXCLUDED),
        ):
            yield
    finally:
        torch.set_default_dtype(default)


def run_calls(session: Any, positions: Sequence[int], *, release: bool, done: set[int] | None = None) -> None:
    """Runs the calls at `positions` of the session's path and fills their handles.

    Args:
        session: a predicting session whose path holds the calls.
        positions: increasing positions on the path.
        release: drop every storage after its last use here, as eager execution would.
        done: receives the position of every call that has run.

    Raises:
        RuntimeError: a call gave another shape or dtype than when it was recorded.
    """
    last = _last_uses(session.path, positions) if release else {}
    with below_autograd():
        for i in positions:
            call = session.node(i).call
            args, kwargs = session.arguments(i)
            if call.grad != torch.is_grad_enabled():
                torch._C._set_grad_enabled(call.grad)
            try:
                out = call.op(*args, **kwargs)
            except Exception as error:
                error.add_note(f"(raised by {call.op.name()}, called at {call.source}, when Markstep ran the step)")
                raise
            del args, kwargs
            if not session.store(i, out):
                raise RuntimeError(
                    f"{call.op.name()} at {call.source} gave a result of another shape or dtype than when it was recorded. "
                    "If its shape depends on values, tag the operator with torch.Tag.dynamic_output_shape, or call it "
                    "inside `with markstep.pause():`."
                )
            if done is not None:
                done.add(i)
            del out
            for slot in last.get(i, ()):
                session.release(slot)


def _last_uses(path: Sequence[Any], positions: Sequence[int]) -> dict[int, list[int]]:
    seen: set[int] = set()
    last: dict[int, list[int]] = {}
    for i in reversed(positions):
        call = path[i].call
        for slot in [*call.reads, *(n.slot for n in call.creates)]:
            if slot not in seen:
                seen.add(slot)
                last.setdefault(i, []).append(slot)
    return last
