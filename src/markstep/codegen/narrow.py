"""Matrix products in fp32 of which a bf16 model keeps only a rounded result.

Attention with dropout computes in fp32 between inputs and outputs in bf16. A product whose result is rounded to bf16 at once,
and of which one factor comes from bf16, is computed from bf16 factors, as PyTorch's own fused attention does: accumulated in
fp32, at twice the speed or better. The scores and the gradients of the probabilities stay in fp32.
"""

from __future__ import annotations

import torch

from markstep.codegen.uses import Uses
from markstep.record.program import Call, Program, Ref

_PRODUCTS = ("aten::bmm", "aten::mm")
_SCALINGS = ("aten::mul.Scalar", "aten::mul.Tensor", "aten::div.Scalar", "aten::div.Tensor")


def find(program: Program) -> frozenset[int]:
    """Positions of the products that are computed in bf16."""
    uses = Uses(program)
    return frozenset(i for i in program.pending if _is_product(program.calls[i]) and _fits(program, uses, i))


def _is_product(call: Call) -> bool:
    return call.op.name() in _PRODUCTS and not call.kwargs and call.creates[0].meta[3] == torch.float32


def _fits(program: Program, uses: Uses, position: int) -> bool:
    call = program.calls[position]
    slot = call.creates[0].slot
    return slot not in program.live and any(_is_bf16(uses, a) for a in call.args) and _is_rounded(program, uses, slot)


def _is_harmless(call: Call) -> bool:
    """What may stand between a product and a cast: a copy, or a multiplication by a constant."""
    return call.op.name() == "aten::clone" or (call.op.name() in _SCALINGS and type(call.args[1]) in (int, float))


def _is_bf16(uses: Uses, factor: Ref) -> bool:
    """Does it hold numbers of a bf16 tensor, up to a scale?"""
    slot = factor.slot
    while not uses.written[slot]:
        at = uses.maker.get(slot)
        if at is None:
            return False
        call = uses.calls[at]
        source = call.args[0] if call.args else None
        if type(source) is not Ref:
            return False
        if call.op.name() == "aten::_to_copy":
            return source.meta[3] == torch.bfloat16
        if not _is_harmless(call):
            return False
        slot = source.slot
    return False


def _is_rounded(program: Program, uses: Uses, slot: int) -> bool:
    """Do all uses of it end in a cast to bf16?"""
    if uses.written[slot] or slot in program.live:
        return False
    users = uses.real_users(slot)
    for i in users:
        call = program.calls[i]
        if not call.creates:
            return False
        if call.op.name() == "aten::_to_copy" and call.creates[0].meta[3] == torch.bfloat16:
            continue
        if not _is_harmless(call) or not _is_rounded(program, uses, call.creates[0].slot):
            return False
    return bool(users)
