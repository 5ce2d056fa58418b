"""Runs a compiled program on a session that has predicted it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from markstep.codegen import randomness
from markstep.codegen.inductor import Runner
from markstep.codegen.lower import Feed
from markstep.codegen.plan import Piece, Plan
from markstep.record.interpreter import below_autograd, run_calls
from markstep.record.program import New, Ref, leaves
from markstep.record.schema import facts


class Compiled:
    """Compiled graphs and the host's calls between them. See `markstep.engine.ending.Executable`.

    Attributes:
        rewrites: name of each pass that changed something to the number of places.
    """

    def __init__(self, plan: Plan, graphs: Sequence[tuple[Feed, Runner] | None], rewrites: dict[str, int]) -> None:
        self.plan, self.rewrites = plan, rewrites
        self.steps = list(zip(plan.pieces, graphs, strict=True))
        self.key_count = 1 + max(plan.keys.values()) if plan.keys else 0
        self.kinds = [float if t is float else int for t in plan.scalar_types]

    def run(self, session: Any) -> None:
        """Computes everything pending and fills the handles."""
        with below_autograd():
            scalars = session.scalars
            drawn = self._draw(session)
            keys = self._keys()
            for piece, graph in self.steps:
                if graph is None:
                    run_calls(session, piece.positions, release=False)
                else:
                    self._run_graph(session, piece, *graph, scalars, drawn, keys)
                for slot in piece.release:
                    session.release(slot)

    def _run_graph(
        self,
        session: Any,
        piece: Piece,
        feed: Feed,
        call: Runner,
        scalars: list[Any],
        drawn: dict[int, Tensor],
        keys: Sequence[Tensor],
    ) -> None:
        args = [session.tensor(slot, meta) for slot, meta in feed.tensors]
        args += self._numbers(feed.scalars, scalars)
        args += [drawn[i] for i in feed.draws]
        args += [keys[k] for k in feed.keys]
        for new, value in zip(piece.outputs, _distinct(call(args)), strict=True):
            if not session.fill(new.slot, value, new.meta):
                raise RuntimeError(
                    f"the compiled program gave {value.dtype} {tuple(value.shape)} for s{new.slot}, "
                    f"not {new.meta[3]} {new.meta[0]}"
                )

    def _numbers(self, which: Sequence[int], scalars: list[Any]) -> list[Tensor]:
        """The numbers as 0-dim tensors, which share two storages: making one tensor for each took 2 us each."""
        made: dict[int, Tensor] = {}
        for kind, dtype in ((float, torch.float64), (int, torch.int64)):
            chosen = [k for k in which if self.kinds[k] is kind]
            made.update(zip(chosen, torch.tensor([scalars[k] for k in chosen], dtype=dtype).unbind(0), strict=True))
        return [made[k] for k in which]

    def _keys(self) -> Sequence[Tensor]:
        if not self.key_count:
            return ()
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        keys = randomness.make_keys(seed, self.key_count)
        device = self.plan.program.calls[next(iter(self.plan.keys))]
        target = next(m.meta[4] for m in leaves((device.args, device.outs)) if isinstance(m, (Ref, New)))
        return keys.to(target).unbind(0)

    def _draw(self, session: Any) -> dict[int, Tensor]:
        drawn: dict[int, Tensor] = {}
        for i in self.plan.draws:
            call = self.plan.program.calls[i]
            if facts(call.op).rng_state:
                run_calls(session, [i], release=False)
            else:
                drawn[i] = randomness.draw(call)
        return drawn


def _distinct(results: Sequence[Tensor]) -> list[Tensor]:
    """Results of which none is given twice; copied before any of them is emptied into a handle."""
    seen: set[int] = set()
    distinct = []
    for value in results:
        distinct.append(value.clone() if id(value) in seen else value)
        seen.add(id(value))
    return distinct
