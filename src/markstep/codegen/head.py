"""The loss head: a linear layer followed by cross-entropy, in one operator, for language models.

As the program was recorded, all logits exist several times: from the product, in fp32, as logarithms of probabilities, and
as their gradients. Here a block of rows of logits is computed and becomes its own gradient in place, and the products of
backward follow at once, for the gradient 1 of the loss; where backward asks for them they are multiplied by the loss's
real gradient. On CPUs, rows whose label is ignored (-100) take no part in any of the products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from markstep.codegen import products
from markstep.codegen.plan import Piece
from markstep.codegen.uses import Uses
from markstep.record import native
from markstep.record.program import Call, Meta, Program, Ref

_FEWEST = 1 << 20  # logits; below, the products are too small to matter
_BLOCK = 128 << 20  # bytes of logits at a time
_DTYPES = (torch.float32, torch.bfloat16)  # in fp16, gradients without their scale would vanish
_MEAN, _SUM = 1, 2

_library = torch.library.Library("markstep", "FRAGMENT")
_library.define(
    "loss_head(Tensor hidden, Tensor weight, Tensor? bias, Tensor labels, int reduction, int ignore_index, bool[3] wanted, "
    "bool measured=False) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)


def loss_head(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    reduction: int,
    ignore_index: int,
    wanted: list[bool],
    measured: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Cross-entropy of `hidden @ weight.T + bias`, and its gradients.

    Args:
        hidden: (rows, features), fp32 or bf16.
        weight: (classes, features) of the same dtype.
        bias: (classes,) of the same dtype.
        labels: (rows,) in int64.
        reduction: 1 for the mean of the rows that are not ignored, 2 for the sum.
        ignore_index: the label of rows that count for nothing.
        wanted: whether the gradients of `hidden`, `weight` and `bias` are wanted; an empty tensor stands for one that is not.
        measured: products come from the library that measures best (`products.py`).

    Returns:
        The loss in fp32, the number of rows that are not ignored in fp32, and the three gradients for a loss gradient of 1.

    Raises:
        IndexError: a label is not a class.
    """
    kept = labels != ignore_index
    count = kept.sum()
    rows: Tensor | None = None
    y = labels
    if hidden.device.type == "cpu":
        _check(labels[kept], weight.shape[0])
        if int(count) < 0.95 * labels.numel():
            rows = kept.nonzero().squeeze(1)
            hidden, y = hidden[rows], labels[rows]
    scale = 1.0 / count.to(torch.float32) if reduction == _MEAN else torch.ones((), device=hidden.device)
    losses = torch.empty(y.shape, dtype=torch.float32, device=hidden.device)
    height = max(1, _BLOCK // (weight.shape[0] * weight.element_size()))
    blocks = [slice(at, at + height) for at in range(0, len(y), height)]
    exact = weight.dtype if len(blocks) == 1 else torch.float32  # many roundings of a sum are worse than one
    grad_hidden = torch.empty_like(hidden) if wanted[0] else hidden.new_empty(0)
    grad_weight = torch.zeros(weight.shape if wanted[1] else 0, dtype=exact, device=weight.device)
    grad_bias = torch.zeros(weight.shape[:1] if wanted[2] else 0, dtype=exact, device=weight.device)
    mm, addmm = (products.mm, products.addmm) if measured else (torch.mm, torch.addmm)
    for block in blocks:
        x = hidden[block]
        logits = x.new_empty(len(x), weight.shape[0])
        mm(x, weight.t(), out=logits) if bias is None else addmm(bias, x, weight.t(), out=logits)
        _to_gradient(logits, y[block], losses[block], scale, ignore_index)
        if wanted[0]:
            mm(logits, weight, out=grad_hidden[block])
        if wanted[1]:
            if exact == weight.dtype:
                addmm(grad_weight, logits.t(), x, out=grad_weight) if block.start else mm(logits.t(), x, out=grad_weight)
            else:
                grad_weight += torch.mm(logits.t(), x)
        if wanted[2]:
            grad_bias += logits.sum(0, dtype=exact)
        del logits
    if rows is not None and wanted[0]:
        grad_hidden = grad_hidden.new_zeros(len(labels), weight.shape[1]).index_copy_(0, rows, grad_hidden)
    total = losses.sum()
    loss = total / count if reduction == _MEAN else total
    return loss, count.to(torch.float32), grad_hidden, grad_weight.to(weight.dtype), grad_bias.to(weight.dtype)


def _check(labels: Tensor, classes: int) -> None:
    for label in () if not labels.numel() else torch.stack(labels.aminmax()).tolist():
        if not 0 <= label < classes:
            raise IndexError(f"Target {label} is out of bounds.")


def _to_gradient(logits: Tensor, labels: Tensor, losses: Tensor, scale: Tensor, ignore_index: int) -> None:
    """Logits (rows, classes) become the gradient of the scaled loss; `losses` (rows,) gets every row's own."""
    module = native.loaded() if logits.device.type == "cpu" else None
    if module is not None:
        module.cross_entropy_(logits, labels, losses, float(scale), ignore_index)
        return
    ignored = labels == ignore_index
    y = labels.masked_fill(ignored, 0)[:, None]
    gradient = torch.log_softmax(logits, 1, dtype=torch.float32)
    losses.copy_(-gradient.gather(1, y).squeeze(1).masked_fill(ignored, 0))
    gradient.exp_().scatter_add_(1, y, torch.full_like(y, -1, dtype=torch.float32))
    logits.copy_(gradient.mul_(scale).masked_fill_(ignored[:, None], 0))


def _shapes(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    labels: Tensor,
    reduction: int,
    ignore_index: int,
    wanted: list[bool],
    measured: bool = False,
) -> tuple[Tensor, ...]:
    scalar = labels.new_empty((), dtype=torch.float32)
    return (
        scalar,
        torch.empty_like(scalar),
        hidden.new_empty(hidden.shape if wanted[0] else 0),
        weight.new_empty(weight.shape if wanted[1] else 0),
        weight.new_empty(weight.shape[:1] if wanted[2] else 0),
    )


_library.impl("loss_head", loss_head, "CompositeExplicitAutograd")
_library.impl("loss_head", _shapes, "Meta")


@dataclass
class Head:
    """One loss head in a piece of a program.

    Attributes:
        forward: position of the loss; the whole head is computed there.
        inside: positions of calls that are left out.
        gradients: positions of the calls whose results are the gradients of hidden, weight and bias, as far as there are any.
        grad: the gradient of the loss; None where it is known to be 1.
    """

    forward: int
    hidden: Ref
    weight: Ref
    bias: Ref | None
    labels: Ref
    reduction: int
    ignore_index: int
    inside: set[int] = field(default_factory=set)
    gradients: list[int | None] = field(default_factory=lambda: [None, None, None])
    grad: Ref | None = None


def find(program: Program, piece: Piece) -> list[Head]:
    """All loss heads that lie within the piece as a whole."""
    uses = Uses(program)
    found = []
    for i in piece.positions:
        if program.calls[i].op.name() == "aten::nll_loss_forward":
            head = _match(program, piece, uses, i)
            if head is not None:
                found.append(head)
    return found


def _match(program: Program, piece: Piece, uses: Uses, position: int) -> Head | None:
    log_probabilities, labels, class_weights, reduction, ignore_index = program.calls[position].args
    if class_weights is not None or reduction not in (_MEAN, _SUM) or type(ignore_index) is not int:
        return None
    softmax = uses.made_by(log_probabilities.slot, "aten::_log_softmax")
    if softmax is None or softmax[1].args[1:] != (1, False):
        return None
    logits = softmax[1].args[0]
    cast = uses.made_by(logits.slot, "aten::_to_copy")
    source = cast[1].args[0].slot if cast else logits.slot
    product = uses.made_by(source, "aten::mm", "aten::addmm")
    if product is None:
        return None
    inside = {softmax[0], product[0], *([cast[0]] if cast else [])}
    *biases, hidden, transposed = product[1].args
    made = product[1].creates[0].meta
    shape = (hidden.meta[0][0], transposed.meta[0][1])
    if not (_is_whole(made, shape) and _is_whole(logits.meta, shape) and labels.meta[0] == shape[:1]):
        return None
    if made[3] not in _DTYPES or logits.meta[3] != torch.float32 or shape[0] * shape[1] < _FEWEST:
        return None
    if product[1].kwargs or not _is_whole(hidden.meta, hidden.meta[0], anywhere=True) or not _is_transposed(transposed.meta):
        return None
    if writes := uses.written[source]:  # a linear layer on activations that are not contiguous adds its bias in place
        if biases or len(writes) != 1 or not product[0] < writes[0] < min(i for i in inside if i != product[0]):
            return None
        biases = _added_bias(program.calls[writes[0]], source, shape)
        if not biases:
            return None
        inside.add(writes[0])
    if biases and (len(biases) != 1 or not _is_whole(biases[0].meta, shape[1:], anywhere=True)):
        return None
    weight = Ref(transposed.slot, _transposed(transposed.meta))
    head = Head(position, hidden, weight, biases[0] if biases else None, labels, reduction, ignore_index)
    head.inside = inside
    own = {log_probabilities.slot, logits.slot, source}
    if not _match_backward(uses, head, log_probabilities.slot, made, own):
        return None
    return head if _is_closed(program, piece, uses, head, own) else None


def _added_bias(call: Call, target: int, shape: tuple[int, int]) -> list[Ref]:
    if call.op.name() != "aten::add_.Tensor" or call.kwargs or len(call.args) != 2:
        return []
    to, bias = call.args
    whole = (
        to.slot == target
        and _is_whole(to.meta, to.meta[0])
        and to.meta[0][-1] == shape[1]
        and math.prod(to.meta[0]) == math.prod(shape)
    )
    return [bias] if whole and type(bias) is Ref and bias.meta[0] == shape[1:] else []


def _match_backward(uses: Uses, head: Head, log_probabilities: int, made: Meta, own: set[int]) -> bool:
    calls, forward = uses.calls, uses.calls[head.forward]
    users = [i for i in uses.real_users(log_probabilities) if i != head.forward]
    starts = [i for i in users if calls[i].op.name() == "aten::nll_loss_backward"]
    ends = [i for i in users if calls[i].op.name() == "aten::_log_softmax_backward_data"]
    if len(users) != 2 or len(starts) != 1 or len(ends) != 1:
        return False
    start, end = calls[starts[0]], calls[ends[0]]
    if start.args[2:6] != forward.args[1:] or end.args[0].slot != start.creates[0].slot:
        return False
    grad = start.args[0]
    if not isinstance(grad, Ref) or start.args[6].slot != forward.creates[1].slot or start.args[1].slot != log_probabilities:
        return False
    head.grad = None if uses.made_by(grad.slot, "aten::ones_like", "aten::ones") and not uses.written[grad.slot] else grad
    head.inside |= {starts[0], ends[0]}
    gradient = end.creates[0].slot
    own |= {start.creates[0].slot, gradient}
    if end.creates[0].meta[3] != made[3]:
        casts = uses.real_users(gradient)
        if len(casts) != 1 or calls[casts[0]].op.name() != "aten::_to_copy" or calls[casts[0]].creates[0].meta[3] != made[3]:
            return False
        head.inside.add(casts[0])
        gradient = calls[casts[0]].creates[0].slot
        own.add(gradient)
    for i in uses.real_users(gradient):
        which = _which_gradient(calls[i], gradient, head, made)
        if which is None or head.gradients[which] is not None:
            return False
        head.gradients[which] = i
    return True


def _which_gradient(call: Call, gradient: int, head: Head, made: Meta) -> int | None:
    """Is the call the product that gives the gradient of hidden (0) or weight (1), or the sum for the bias (2)?"""
    name, rows, classes = call.op.name(), *made[0]
    first = call.args[0]
    if type(first) is not Ref or first.slot != gradient or call.kwargs or not call.creates:
        return None
    if name == "aten::mm" and _is_whole(first.meta, (rows, classes)) and call.args[1] == head.weight:
        return 0
    if name == "aten::mm" and first.meta[:3] == ((classes, rows), (1, classes), 0) and call.args[1] == head.hidden:
        return 1
    shape = first.meta[0]
    if name == "aten::sum.dim_IntList" and _is_whole(first.meta, shape) and list(call.args[1]) == list(range(len(shape) - 1)):
        return 2 if shape[-1] == classes else None
    return None


def _is_closed(program: Program, piece: Piece, uses: Uses, head: Head, own: set[int]) -> bool:
    """Does nobody else see what is left out, and does nothing that the head reads change before its last call?"""
    for slot in own:
        head.inside |= {i for i in uses.users[slot] if uses.is_view(i, slot)}
    gradients = {i for i in head.gradients if i is not None}
    allowed = head.inside | gradients | {head.forward}
    if (
        not allowed.issubset(piece.positions)
        or not own.isdisjoint(program.live)
        or any(w not in head.inside for s in own for w in uses.written[s])
    ):
        return False
    if any(not allowed.issuperset(uses.users[slot]) for slot in own):
        return False
    first, last = min(allowed), max(allowed)
    read = [head.hidden, head.weight, head.labels, *([head.bias] if head.bias else [])]
    return not any(first < w < last for ref in read for w in uses.written[ref.slot])


def _is_whole(meta: Meta, shape: tuple[int, ...], *, anywhere: bool = False) -> bool:
    """Contiguous, of that shape, and from the start of its storage (or anywhere on it)."""
    strides, step = [], 1
    for n in reversed(shape):
        strides.append(step)
        step *= n
    return meta[0] == shape and meta[1] == tuple(reversed(strides)) and (anywhere or meta[2] == 0)


def _is_transposed(meta: Meta) -> bool:
    return len(meta[0]) == 2 and meta[1] == (1, meta[0][0])


def _transposed(meta: Meta) -> Meta:
    return (meta[0][::-1], meta[1][::-1], *meta[2:])
