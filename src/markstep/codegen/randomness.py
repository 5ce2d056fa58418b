"""Random operators in compiled programs.

Two ways. Hashed: a mask element is an integer hash of (the step's seed, the number of the draw, the element's index); it is
computed inside the compiled program, costs no memory and can be computed again in backward. Drawn: the operator's random
part is drawn from torch's generator before the program runs, in the order of the calls, and is an input.

The state of the generator, which `torch.utils.checkpoint` saves and restores around a recomputation, is the number of draws
so far; restoring an earlier state makes the following draws repeat earlier numbers. Should a state leave the program (the
recomputation happens in another one), everything is drawn, so that every way of running later programs agrees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from markstep.record.program import Call, Program, Ref, leaves
from markstep.record.schema import draws, facts

_HASHED = {
    "aten::bernoulli_.float", "aten::bernoulli.p", "aten::native_dropout", "aten::rand", "aten::rand_like", "aten::uniform_",
    "aten::uniform", "aten::randn", "aten::randn_like", "aten::normal_",
}  # fmt: skip
_DRAWN = _HASHED | {
    "aten::randint", "aten::randint.low", "aten::randint_like", "aten::randint_like.low_dtype", "aten::randperm",
    "aten::random_", "aten::random_.from", "aten::random_.to", "aten::exponential_", "aten::geometric_", "aten::cauchy_",
    "aten::log_normal_",
}  # fmt: skip
_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


@dataclass(frozen=True)
class Draws:
    """How the random calls of a program get their numbers.

    Attributes:
        hashed: position of a call to the number of its key.
        drawn: positions that draw from torch's generator before the program runs, in order; where torch's own numbers are
            wanted, reading and setting its state are among them.
        settled: positions that need no further thought: all of the above, and states that were followed by counting.
    """

    hashed: dict[int, int]
    drawn: tuple[int, ...]
    settled: frozenset[int]


def assign(program: Program, rng: str) -> Draws:
    """Decides for every pending random call; those that appear nowhere in the answer are made by the host, in order."""
    calls = program.calls
    random = [i for i in program.pending if draws(calls[i].op, calls[i].args, calls[i].kwargs) or facts(calls[i].op).rng_state]
    states = [i for i in random if facts(calls[i].op).rng_state]
    all_hashed = all(_name(calls[i]) in _HASHED for i in random if i not in states)
    if rng == "hash" and not _state_escapes(program, random) and (all_hashed or not states):
        keys = _count(program, random)
        drawn = tuple(i for i in random if i not in keys and _name(calls[i]) in _DRAWN)
        return Draws(keys, drawn, frozenset([*keys, *drawn, *states]))
    if all(_name(calls[i]) in _DRAWN for i in random if i not in states):
        return Draws({}, tuple(random), frozenset(random))
    return Draws({}, (), frozenset())  # something draws in a way that depends on values


def _name(call: Call) -> str:
    return str(call.op.name())


def _state_escapes(program: Program, random: list[int]) -> bool:
    states: set[int] = set()
    for i in random:
        call = program.calls[i]
        if not facts(call.op).rng_state:
            continue
        created = {n.slot for n in call.creates}
        states |= created
        if created & program.live or any(s not in states for s in call.reads):
            return True
    others = set(program.pending) - set(random)
    return any(not states.isdisjoint(program.calls[i].reads) for i in others)


def _count(program: Program, random: list[int]) -> dict[int, int]:
    keys: dict[int, int] = {}
    saved: dict[int, int] = {}
    counter = 0
    for i in random:
        call = program.calls[i]
        if facts(call.op).rng_state:
            if call.creates:
                saved[call.creates[0].slot] = counter
            else:
                counter = saved[call.reads[0]]
        elif _name(call) in _HASHED:
            keys[i] = counter
            counter += 1
    return keys


KEY_SHAPE = (4,)  # a pair of numbers, and padding, so that each key is aligned to 16 bytes


def make_keys(seed: int, count: int) -> Tensor:
    """`count` keys from a step's 64-bit seed (SplitMix64), as an int32 tensor [count, *KEY_SHAPE]."""
    values = []
    for i in range(count):
        z = (seed + (i + 1) * _GOLDEN) & _MASK64
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK64
        z ^= z >> 31
        values += [_signed(z & 0xFFFFFFFF), _signed(z >> 32), 0, 0]
    return torch.tensor(values, dtype=torch.int32).view(count, *KEY_SHAPE)


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def _hash(shape: tuple[int, ...], key: Tensor, device: torch.device, lane: int = 0) -> Tensor:
    """31 random bits for every element of `shape`: a multiply-xorshift hash of its index with two 32-bit keys.

    The rounds are those of the "lowbias32" family (C. Wellons, Hash Function Prospector); the second key enters between
    them, so that two draws are not shifted copies of each other.
    """
    index = torch.arange(math.prod(shape), dtype=torch.int32, device=device).view(shape)
    h = (index * -1640531527) + key[0]
    h = (h ^ ((h >> 16) & 0xFFFF)) * 0x7FEB352D
    h = h ^ (key[1] + lane * 0x2545F491)
    h = (h ^ ((h >> 15) & 0x1FFFF)) * -2073254261
    h = h ^ ((h >> 16) & 0xFFFF)
    return h & 0x7FFFFFFF


def _uniform(shape: tuple[int, ...], key: Tensor, device: torch.device, lane: int = 0) -> Tensor:
    return (_hash(shape, key, device, lane) >> 7).to(torch.float32) * (2.0**-24)


def _normal(shape: tuple[int, ...], key: Tensor, device: torch.device) -> Tensor:
    """Box and Muller's transform of two uniform numbers."""
    radius = torch.sqrt(-2.0 * torch.log(1.0 - _uniform(shape, key, device)))
    return radius * torch.cos((2.0 * math.pi) * _uniform(shape, key, device, lane=1))


def _keep(shape: tuple[int, ...], p_keep: float, key: Tensor, device: torch.device) -> Tensor:
    return (
        _hash(shape, key, device) < min(int(p_keep * 2.0**31), 2**31 - 1)
        if p_keep < 1
        else torch.ones(shape, dtype=torch.bool, device=device)
    )


def hashed(call: Call, args: tuple[Any, ...], kwargs: dict[str, Any], key: Tensor) -> Any:
    """What a random call gives, from its key; traced into the compiled program."""
    name = _name(call)
    if name == "aten::native_dropout":
        x, p, train = args
        if not train or p == 0:
            return x.clone(), torch.ones_like(x, dtype=torch.bool)
        mask = _keep(tuple(x.shape), 1 - p, key, x.device)
        return torch.where(mask, x * (0.0 if p >= 1 else 1.0 / (1.0 - p)), 0.0), mask
    if name == "aten::bernoulli_.float":
        p = args[1] if len(args) > 1 else kwargs.get("p", 0.5)
        return args[0].copy_(_keep(tuple(args[0].shape), p, key, args[0].device))
    if name == "aten::bernoulli.p":
        return _keep(tuple(args[0].shape), args[1], key, args[0].device).to(args[0].dtype)
    if name in ("aten::uniform_", "aten::uniform", "aten::normal_"):
        x = args[0]
        defaults = (0.0, 1.0)
        first, second = (*args[1:], *defaults[len(args) - 1 :])[:2]
        first = kwargs.get("from", kwargs.get("mean", first))
        second = kwargs.get("to", kwargs.get("std", second))
        if name == "aten::normal_":
            return x.copy_(_normal(tuple(x.shape), key, x.device) * second + first)
        values = _uniform(tuple(x.shape), key, x.device) * (second - first) + first
        return x.copy_(values) if name.endswith("_") else values.to(x.dtype)
    meta = call.creates[0].meta
    maker = _uniform if "randn" not in name else _normal
    values = maker(meta[0], key, meta[4]).to(meta[3])
    return torch.empty_strided(meta[0], meta[1], dtype=meta[3], device=meta[4]).copy_(values)


def draw(call: Call) -> Any:
    """Draws the random part of a call from torch's generator, exactly as the operator itself would."""
    refs = [r for r in leaves((call.args, tuple(call.kwargs.values()))) if type(r) is Ref]
    fresh = {id(r): torch.empty_strided(r.meta[0], r.meta[1], dtype=r.meta[3], device=r.meta[4]) for r in refs}
    if _name(call) == "aten::native_dropout":
        fresh = {k: v.fill_(1) for k, v in fresh.items()}
    args = tuple(fresh[id(a)] if type(a) is Ref else a for a in call.args)
    kwargs = {k: fresh[id(v)] if type(v) is Ref else v for k, v in call.kwargs.items()}
    result = call.op(*args, **kwargs)
    return result[1] if _name(call) == "aten::native_dropout" else result


def apply_drawn(call: Call, args: tuple[Any, ...], drawn: Tensor) -> Any:
    """What a random call gives, from its drawn part; traced into the compiled program."""
    if _name(call) == "aten::native_dropout":
        x, p, train = args
        if not train or p == 0:
            return x.clone(), drawn
        return x * drawn * (0.0 if p >= 1 else 1.0 / (1.0 - p)), drawn
    return args[0].copy_(drawn) if call.writes else drawn.clone()
