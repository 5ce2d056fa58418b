"""A small machine that runs generated training steps: instructions over a pool of tensors.

An instruction is `(name, a, b, c)`; the three numbers choose operands and variants, so that any list of instructions is a
valid program. Errors of single instructions are caught and are part of the observed result, as in a user's `try`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

import markstep

Instruction = tuple[str, int, int, int]
STEPS = 5


class Deliberate(Exception):
    """Raised by the user's code in the middle of a step."""


class Square(torch.autograd.Function):
    """A custom function that saves its input."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * 2 * ctx.saved_tensors[0]


class Scale(torch.autograd.Function):
    """A custom function that works in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(3)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * 3


class Machine:
    """Tensors that live across steps, and the instructions that work on them.

    Attributes:
        state: leaves and buffers that live across steps.
        pool: all tensors that instructions of the running step can use.
        log: what Python code of the step has seen: values, errors.
        poisoned: a call whose error depends on values was made: from here on errors are not caught.
    """

    def __init__(self, instructions: list[Instruction], alive: int) -> None:
        self.instructions, self.alive = instructions, alive
        generator = torch.Generator().manual_seed(7)
        real = lambda *shape, dtype=torch.float32: torch.randn(*shape, generator=generator).to(dtype)  # noqa: E731
        self.state = [
            real(3, 4).requires_grad_(),
            real(4).requires_grad_(),
            real(3, 4),
            real(2, 3, dtype=torch.complex64),
            torch.arange(12).view(3, 4),
            real(4, 3, dtype=torch.bfloat16).requires_grad_(),
            torch.tensor(2.5),
        ]
        self.pool: list[torch.Tensor] = []
        self.log: list[Any] = []
        self.step_number = 0
        self.poisoned = False

    def batch(self, k: int, sharing: int) -> list[torch.Tensor]:
        """The inputs of step `k`; some of them alias each other."""
        generator = torch.Generator().manual_seed(100 + k)
        x = torch.randn(3, 4, generator=generator)
        second = (x, x[1:], x.t(), torch.randn(3, 4, generator=generator), self.state[2], x.view(12)[2:6])[sharing % 6]
        whole = torch.randint(0, 4, (3, 4), generator=generator)
        return [
            x,
            second,
            whole,
            x > 0,
            x.double(),
            torch.zeros(0, 4),
            torch.randn(2, 3, 4, generator=generator).half(),
        ]

    def step(self, batch: list[torch.Tensor]) -> Any:
        """One training step."""
        self.pool = [*self.state, *batch]
        for name, a, b, c in self.instructions:
            try:
                INSTRUCTIONS[name](self, a, b, c)
            except Deliberate:
                raise
            except Exception as error:  # noqa: BLE001
                if self.poisoned:
                    raise
                self.log.append(type(error).__name__)
        kept = [t for i, t in enumerate(self.pool) if self.alive >> (i % 16) & 1]
        self.pool = []
        return kept

    def pick(self, i: int) -> torch.Tensor:
        """A tensor of the pool; later ones are likelier."""
        n = len(self.pool)
        return self.pool[i % n] if i % 3 else self.pool[-1 - i // 3 % min(n, 5)]

    def pick_float(self, i: int) -> torch.Tensor:
        """A floating-point tensor of the pool."""
        found = [t for t in self.pool if t.is_floating_point()]
        return found[i % len(found)]

    def differentiable(self) -> list[torch.Tensor]:
        """Results that a backward can start from."""
        return [t for t in self.pool if t.requires_grad and not t.is_leaf]

    def number(self, c: int) -> float | int | bool:
        """A Python number; some change from step to step."""
        k = self.step_number
        return (2, 0.5, k, k * 0.25, True, -0.0 if k % 2 else 0.0, 1 + k // 2, float("nan") if k == 3 else 1.0)[c % 8]

    def add(self, *results: Any) -> None:
        """Puts results into the pool; an old one is forgotten when there are too many."""
        for r in results:
            if isinstance(r, torch.Tensor):
                self.pool.append(r)
            elif isinstance(r, (tuple, list)):
                self.add(*r[:3])
            else:
                self.log.append(r)
        while len(self.pool) > 28:
            del self.pool[14]


def fit(b: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """`b`, or a single number out of it, so that it broadcasts to `shape`."""
    try:
        return b if torch.broadcast_shapes(b.shape, shape) == shape else b.sum()
    except RuntimeError:
        return b.sum()


def real(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def complexes(x: torch.Tensor) -> torch.Tensor:
    return x if x.is_complex() else torch.complex(x.float(), x.float() + 1)


VIEWS: list[Callable[[torch.Tensor, int], Any]] = [
    lambda x, c: x[c % 3 :],
    lambda x, c: x[..., c % 2 :: 2],
    lambda x, c: x.select(c % x.dim(), c % x.shape[c % x.dim()]),
    lambda x, c: x.transpose(0, -1),
    lambda x, c: x.permute(*reversed(range(x.dim()))),
    lambda x, c: x.expand(2, *x.shape),
    lambda x, c: x.as_strided((3, 2), (1, 1)) if x.numel() > 3 else x[:],
    lambda x, c: x.as_strided((2, 3), (3, 1), c % 4) if x.numel() > 8 else x[:],  # never outside of what is initialised
    lambda x, c: x.diagonal(c % 2),
    lambda x, c: x.unfold(-1, 2, 1),
    lambda x, c: x.view(-1),
    lambda x, c: x.reshape(2, -1),
    lambda x, c: x.unsqueeze(c % 2).squeeze(),
    lambda x, c: complexes(x).real,
    lambda x, c: complexes(x).imag,
    lambda x, c: complexes(x).conj(),
    lambda x, c: complexes(x).conj().imag,
    lambda x, c: torch.view_as_real(complexes(x)),
    lambda x, c: torch.view_as_complex(x.view(-1, 2)),
    lambda x, c: x.detach(),
    lambda x, c: x.data,
    lambda x, c: x.split(2),
    lambda x, c: x.chunk(2, -1),
    lambda x, c: x.unbind(-1),
    lambda x, c: x.tensor_split(3),
    lambda x, c: x.view(torch.int32),
    lambda x, c: x.view_as(x),
    lambda x, c: x.mT,
    lambda x, c: x.movedim(0, -1),
    lambda x, c: x.narrow(0, c % 2, 1),
    lambda x, c: x.flatten(),
    lambda x, c: x.contiguous(),
    lambda x, c: x.alias() if hasattr(x, "alias") else x[:],
]

UNARY: list[Callable[[torch.Tensor, int], Any]] = [
    lambda x, c: x.clone(),
    lambda x, c: x.relu(),
    lambda x, c: x.exp(),
    lambda x, c: x.sum(),
    lambda x, c: x.mean(-1, keepdim=True),
    lambda x, c: x.softmax(-1),
    lambda x, c: x.max(-1),
    lambda x, c: x.sort(-1),
    lambda x, c: x.cumsum(0),
    lambda x, c: x.abs(),
    lambda x, c: x.std(correction=0),
    lambda x, c: torch.nn.functional.gelu(x),
    lambda x, c: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    lambda x, c: x.to(
        (torch.float64, torch.int64, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.complex64)[c % 7]
    ),
    lambda x, c: x.float(),
    lambda x, c: x.sign(),
    lambda x, c: x.flip(0),
    lambda x, c: x.repeat(2, 1),
    lambda x, c: torch.cat([x, x]),
    lambda x, c: torch.stack([x, x * 2], -1),
    lambda x, c: x.prod(),
    lambda x, c: x.any(),
    lambda x, c: x.argmax(),
    lambda x, c: x.logical_not(),
    lambda x, c: x.norm(),
    lambda x, c: torch.zeros_like(x),
    lambda x, c: x.new_ones(3, 4),
    lambda x, c: torch.tensor([[1.0, 2.0, 3.0, 4.0 + c % 3]]),
    lambda x, c: torch.full((3, 1), c % 3),
    lambda x, c: torch.arange(c % 4 + 1),
    lambda x, c: x.resolve_conj(),
    lambda x, c: x.angle(),
    lambda x, c: Square.apply(x),
    lambda x, c: x.masked_fill(x > 0, c),
    lambda x, c: x.median(),
    lambda x, c: torch.from_numpy(x.detach().numpy()),
]

BINARY: list[Callable[[torch.Tensor, torch.Tensor], Any]] = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.div,
    torch.maximum,
    lambda x, y: torch.pow(x, y) if torch.result_type(x, y).is_floating_point else x * y,
    torch.eq,
    torch.lt,
    torch.logical_and,
    lambda x, y: torch.bitwise_xor(x.long(), y.long()),
    lambda x, y: torch.remainder(x, y.abs() + 1),
    lambda x, y: torch.floor_divide(x, y.abs() + 1),
    torch.atan2,
    lambda x, y: torch.where(x > 0, x, y),
    lambda x, y: torch.lerp(x, y, 0.3),
    lambda x, y: torch.addcmul(x, x, y, value=0.5),
    lambda x, y: x.view(-1, x.shape[-1]) @ y.to(x.dtype).expand_as(x).reshape(-1, x.shape[-1]).t(),
    lambda x, y: torch.outer(real(x).flatten(), real(y).flatten()),
    lambda x, y: torch.nn.functional.mse_loss(x, y),
    lambda x, y: torch.add(x, y, out=torch.zeros(3, 4)),
    lambda x, y: torch.mul(x, y, out=x),
]

INPLACE: list[Callable[[torch.Tensor, torch.Tensor, Any], Any]] = [
    lambda x, y, v: x.add_(y),
    lambda x, y, v: x.mul_(y),
    lambda x, y, v: x.sub_(y, alpha=v),
    lambda x, y, v: x.copy_(y),
    lambda x, y, v: x.fill_(v),
    lambda x, y, v: x.zero_(),
    lambda x, y, v: x.add_(v),
    lambda x, y, v: x.div_(v),
    lambda x, y, v: x.clamp_(-1, 1),
    lambda x, y, v: x.relu_(),
    lambda x, y, v: x.masked_fill_(x > 0.5, v),
    lambda x, y, v: x.__setitem__(x < 0, v),
    lambda x, y, v: x.__setitem__(0, v),
    lambda x, y, v: x.__setitem__((Ellipsis, slice(1, None)), y.sum()),
    lambda x, y, v: x.__setitem__(torch.tensor([0, 1, 0]), y.sum()),
    lambda x, y, v: x.index_add_(0, torch.tensor([1, 1]), x[:2].clone()),
    lambda x, y, v: x.scatter_(0, torch.zeros_like(x, dtype=torch.int64), y.expand_as(x)),
    lambda x, y, v: x.index_fill_(0, torch.tensor([1]), v),
    lambda x, y, v: x[1:].copy_(x[:-1]),
    lambda x, y, v: x.t_(),
    lambda x, y, v: x.unsqueeze_(0),
    lambda x, y, v: x.squeeze_(),
    lambda x, y, v: x.detach_(),
    lambda x, y, v: x.conj_physical_(),
    lambda x, y, v: x.lerp_(y, 0.25),
    lambda x, y, v: x.addcdiv_(x, y, value=0.1),
    lambda x, y, v: x.bitwise_or_(y) if not x.is_floating_point() else x.mul_(x),
    lambda x, y, v: x.logical_xor_(y),
    lambda x, y, v: x.eq_(y),
    lambda x, y, v: x.exp_(),
    lambda x, y, v: x.cumsum_(-1),
    lambda x, y, v: x.fill_diagonal_(v),
    lambda x, y, v: x.resize_(2, 2).zero_(),
    lambda x, y, v: x.set_(y),
    lambda x, y, v: setattr(x, "data", y),
    lambda x, y, v: Scale.apply(x),
]

RANDOM: list[Callable[[torch.Tensor, int], Any]] = [
    lambda x, c: torch.rand_like(x),
    lambda x, c: torch.randn(3, 4),
    lambda x, c: torch.nn.functional.dropout(x, 0.25 + c % 2 / 2),
    lambda x, c: x.bernoulli_(0.5),
    lambda x, c: x.normal_(),
    lambda x, c: x.uniform_(-1, 1),
    lambda x, c: torch.randperm(4),
    lambda x, c: torch.randint(0, 5, (3,)),
    lambda x, c: torch.bernoulli(x.sigmoid().nan_to_num()),
    lambda x, c: torch.multinomial(x.sigmoid().nan_to_num() + 0.1, 2),
    lambda x, c: checkpoint(lambda y: torch.nn.functional.dropout(y.sin()).cos(), x, use_reentrant=bool(c % 2)),
    lambda x, c: torch.manual_seed(c) and None,
    lambda x, c: torch.set_rng_state(torch.get_rng_state()),
    lambda x, c: torch.get_rng_state()[:5].clone(),
]

FOREACH: list[Callable[[list[torch.Tensor], Any], Any]] = [
    lambda xs, v: torch._foreach_add_(xs, v),
    lambda xs, v: torch._foreach_mul(xs, v),
    lambda xs, v: torch._foreach_add(xs, xs, alpha=0.5),
    lambda xs, v: torch._foreach_norm(xs),
    lambda xs, v: torch._foreach_lerp_(xs, [x.sin() for x in xs], 0.5),
    lambda xs, v: torch._foreach_mul_(xs, [v, 2.0]),
    lambda xs, v: torch._foreach_zero_(xs),
    lambda xs, v: torch._foreach_copy_(xs, [x.cos() for x in xs]),
    lambda xs, v: torch._foreach_addcdiv_(xs, xs, [x.abs() + 1 for x in xs], v),
    lambda xs, v: torch.nn.utils.clip_grad_norm_(xs, 1.0),
]

READS: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x.sum().item(),
    lambda x: bool((x == x).all()),
    lambda x: x.tolist(),
    lambda x: x.detach().cpu().numpy().tobytes(),
    lambda x: str(x.detach()),
    lambda x: x.nonzero(),
    lambda x: x[x > 0],
    lambda x: x.unique(),
    lambda x: torch.equal(x, x.clone()),
    lambda x: float(x.flatten()[0]),
    lambda x: x.data_ptr() == x.view_as(x).data_ptr(),
    lambda x: x.is_contiguous(),
    lambda x: markstep.sync(),
]


def _backward(m: Machine, a: int, b: int, c: int) -> None:
    outs = m.differentiable()
    if not outs:
        return
    chosen = [real(outs[i % len(outs)]) for i in (a, b)][: 1 + c % 2]
    loss = sum((o * o).sum() if c % 3 else o.sum() for o in chosen)
    if c % 5 == 4:
        grads = torch.autograd.grad(loss, m.state[:2], create_graph=True, allow_unused=True)
        m.add([g for g in grads if g is not None])
    else:
        loss.backward(retain_graph=c % 7 == 6)


def _hook(m: Machine, a: int, b: int, c: int) -> None:
    outs = m.differentiable() or m.state[:2]
    x = outs[a % len(outs)]
    if c % 3 == 0:
        x.register_hook(lambda g: g * 2)
    elif c % 3 == 1:
        x.register_hook(lambda g: m.log.append(g.shape))
    else:
        x.retain_grad()


def _update(m: Machine, a: int, b: int, c: int) -> None:
    with torch.no_grad():
        for p in m.state:
            if p.grad is not None:
                p.add_(p.grad, alpha=-0.1 / (1 + m.step_number))
                if c % 3 == 0:
                    p.grad = None
                elif c % 3 == 1:
                    p.grad.zero_()
                elif c % 2:
                    p.grad.mul_(0.5)


def _pause(m: Machine, a: int, b: int, c: int) -> None:
    if m.poisoned:  # a paused call does not wait for the failing one
        return
    with markstep.pause():
        x = m.pick(a)
        if b % 3 == 0:
            with torch.no_grad():
                x.add_(1)
        elif b % 3 == 1:
            m.add(x * 2)
        else:
            m.add(torch.rand(3, 4))


def _inplace(m: Machine, a: int, b: int, c: int) -> None:
    x = m.pick(a)
    with torch.set_grad_enabled(c % 4 == 0):
        INPLACE[c % len(INPLACE)](x, fit(m.pick(b), x.shape), m.number(a + b))


def _keep(m: Machine, a: int, b: int, c: int) -> None:
    x = m.pick(a).detach()
    m.state[2 + b % 2 * 4] = x if c % 2 else x.clone()


def _diverge(m: Machine, a: int, b: int, c: int) -> None:
    if m.step_number == 1 + b % (STEPS - 1):
        m.add(m.pick(a) * 2)
    elif c % 2:
        m.add(m.pick(a) - 1)


def _drop(m: Machine, a: int, b: int, c: int) -> None:
    del m.pool[7 + a % max(1, len(m.pool) - 7) :]
    m.pool = m.pool or list(m.state)


def _raise(m: Machine, a: int, b: int, c: int) -> None:
    if m.step_number == 2 + b % (STEPS - 2):
        raise Deliberate


def _bad_index(m: Machine, a: int, b: int, c: int) -> None:
    bad = m.step_number == 2 + b % (STEPS - 2)
    index = torch.tensor([0, 999 if bad else 1])
    m.poisoned = m.poisoned or bad
    m.add(m.state[2 - c % 3].index_select(0, index))


INSTRUCTIONS: dict[str, Callable[[Machine, int, int, int], None]] = {
    "view": lambda m, a, b, c: m.add(VIEWS[b % len(VIEWS)](m.pick(a), c)),
    "unary": lambda m, a, b, c: m.add(UNARY[b % len(UNARY)](m.pick(a), c)),
    "binary": lambda m, a, b, c: m.add(BINARY[c % len(BINARY)](m.pick(a), fit(m.pick(b), m.pick(a).shape))),
    "scalar": lambda m, a, b, c: m.add(BINARY[c % 6](m.pick(a), m.number(b))),
    "inplace": _inplace,
    "random": lambda m, a, b, c: m.add(RANDOM[b % len(RANDOM)](m.pick_float(a), c)),
    "foreach": lambda m, a, b, c: _foreach(m, a, b, c),
    "read": lambda m, a, b, c: m.add(READS[-1 if m.poisoned else b % len(READS)](m.pick(a))),
    "backward": _backward,
    "hook": _hook,
    "update": _update,
    "pause": _pause,
    "keep": _keep,
    "drop": _drop,
    "diverge": _diverge,
    "raise": _raise,
    "bad_index": _bad_index,
}


def _foreach(m: Machine, a: int, b: int, c: int) -> None:
    with torch.no_grad():
        m.add(FOREACH[c % len(FOREACH)]([m.pick_float(a), m.pick_float(b)], m.number(a)))


# Instructions as often as they are drawn.
WEIGHTED = [
    *["view"] * 6,
    *["unary"] * 5,
    *["binary"] * 5,
    *["inplace"] * 6,
    *["scalar"] * 2,
    *["random"] * 2,
    *["backward"] * 3,
    *["update"] * 2,
    "foreach", "read", "hook", "pause", "keep", "drop", "diverge", "raise", "bad_index",
]  # fmt: skip
