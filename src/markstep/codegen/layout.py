"""Images between convolutions keep their channels together in memory ("channels last").

The kernels of convolutions want that layout, and PyTorch's fake kernels pass it on from operator to operator. A storage may
be laid out in another way than it was recorded where nobody can see the difference: it lives within one graph, and every call
looks at it as a whole.
"""

from __future__ import annotations

import math

from markstep.codegen.plan import Piece
from markstep.record.program import Meta, Program, Ref, leaves

_CONVOLUTIONS = ("aten::convolution", "aten::convolution_backward")


def find(program: Program, piece: Piece) -> frozenset[int]:
    """Slots of the piece whose layout may be chosen freely; none where there are no convolutions."""
    inside = set(piece.positions)
    if not any(program.calls[i].op.name() in _CONVOLUTIONS for i in inside):
        return frozenset()
    outputs = {new.slot for new in piece.outputs} | program.live
    free = {n.slot: n.meta for i in inside for n in program.calls[i].creates if n.slot not in outputs and _is_image(n.meta)}
    for call in program.calls:
        for ref in leaves((call.args, tuple(call.kwargs.values()), call.outs)):
            if type(ref) is Ref and free.get(ref.slot, ref.meta) != ref.meta:
                del free[ref.slot]
    return frozenset(free)


def images(program: Program, position: int, free: frozenset[int]) -> tuple[int, ...]:
    """Which arguments of the call are images that should have their channels last."""
    call = program.calls[position]
    if call.op.name() not in _CONVOLUTIONS:
        return ()
    places = (0,) if call.op.name() == "aten::convolution" else (0, 1)
    slots = {n.slot for n in call.creates} | {call.args[p].slot for p in places}
    return tuple(p for p in places if len(call.args[p].meta[0]) == 4) if slots & free else ()


def _is_image(meta: Meta) -> bool:
    shape, strides, offset = meta[:3]
    whole = tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))
    return len(shape) == 4 and strides == whole and offset == 0 and 0 not in shape
