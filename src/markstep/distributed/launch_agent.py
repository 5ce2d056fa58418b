"""torch's elastic agent, which starts the workers of a host and watches them, with a closer look at failures."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from contextlib import suppress
from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.agent.server import WorkerGroup, WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.api import RunResult
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import SignalException

from markstep.distributed.launch_failure import Failure, read
from markstep.distributed.launch_output import Outputs

__all__ = ["Agent", "say"]

_FAILED, _FINISHED, _TOLD, _WORKERS_MEET = (f"markstep/{name}" for name in ("failed", "finished", "told", "workers meet"))
_LOOK_ELSEWHERE = 0.25  # seconds between looks whether a worker of another host has failed
_TEARDOWN = 3.0  # seconds that a worker gets to end after the exception that it wrote down
_SETTLING = 1.0  # seconds in which the cause of a lost connection should show; twice that with several hosts
_LONGEST_BARRIER = 300.0
_MEETING = 0.05  # seconds between looks whether all hosts are there


def say(text: str) -> None:
    """Prints a line of the launcher."""
    print(f"markstep: {text}", file=sys.stderr, flush=True)


class Agent(LocalElasticAgent):
    """Ends all workers as soon as one fails, on all hosts, and knows which one was first.

    Args:
        spec: what to run.
        outputs: where its output goes.
        grace: seconds between asking workers to end and killing them.

    Attributes:
        failure: the worker that failed first in the last start of workers.
        others: what became of the others of this host, by rank.
    """

    def __init__(self, spec: WorkerSpec, outputs: Outputs, grace: float) -> None:
        super().__init__(spec, outputs)
        self.failure: Failure | None = None
        self.others: dict[int, str] = {}
        self._outputs, self._grace = outputs, grace
        self._next_look = 0.0
        self._groups_ended = False
        self._workers_store: dist.TCPStore | None = None

    @property
    def hosts(self) -> int:
        """How many hosts take part."""
        return int(self._worker_group.group_world_size or 1)

    def failed_here(self) -> bool:
        """Whether the worker that failed first is one of this host's."""
        return self.failure is not None and self.failure.rank in {w.global_rank for w in self._worker_group.workers}

    def _rendezvous(self, worker_group: WorkerGroup) -> None:
        """Gives every start of workers a store of its own.

        torch keeps one for all starts, in which restarted gloo workers find the addresses of those that have ended.
        """
        super()._rendezvous(worker_group)
        shared: Any = worker_group.store
        if worker_group.group_rank == 0:
            address = worker_group.spec.local_addr or socket.getfqdn()
            self._workers_store = dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)
            shared.set(_WORKERS_MEET, f"{address} {self._workers_store.port}")
        address, port = shared.get(_WORKERS_MEET).decode().split()
        worker_group.master_addr, worker_group.master_port = address, int(port)  # type: ignore[assignment]

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        self.failure, self.others, self._groups_ended = None, {}, False
        if self._outputs.several_hosts:
            size = worker_group.workers[0].world_size
            say(f"{self.hosts} hosts, {size} processes; this is host {worker_group.group_rank} of them")
        started = super()._start_workers(worker_group)
        self._outputs.started()
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        statuses = self._statuses()
        if all(status == 0 for status in statuses.values()):
            self._outputs.finish()
            return super()._monitor_workers(worker_group)
        failed = any(statuses.values()) or self._raised_long_ago() or self._failure_elsewhere() is not None
        if not failed:
            return RunResult(state=WorkerState.HEALTHY)
        self.failure = self._find_first()
        before = self._statuses()
        self._end_workers(signal.SIGTERM)
        self.others = self._what_became(before)
        return RunResult(state=WorkerState.FAILED)

    def _statuses(self) -> dict[int, int | None]:
        """Exit statuses of the workers by local rank, None for those that run."""
        context: Any = self._pcontext
        return {local: handler.proc.poll() for local, handler in context.subprocess_handlers.items()}

    def _failures(self) -> list[Failure]:
        """Workers of this host that have failed, or have written down what ends them."""
        context: Any = self._pcontext
        found = []
        for local, status in self._statuses().items():
            written = read(context.error_files[local])
            if status or (written and status is None):
                moment, trace = written or (time.time(), "")
                worker = self._worker_group.workers[local]
                found.append(Failure(worker.global_rank, socket.gethostname(), worker.id, status, moment, trace))
        return found

    def _raised_long_ago(self) -> bool:
        return any(time.time() - failure.time > _TEARDOWN for failure in self._failures())

    def _find_first(self) -> Failure:
        """The failure that was the cause: not a lost connection, if there is another one, and the first in time."""
        until = time.monotonic() + _SETTLING * (2 if self.hosts > 1 else 1)
        while True:
            found = self._failures()
            elsewhere = self._failure_elsewhere(now=True)
            candidates = [*found, *([elsewhere] if elsewhere else [])]
            first = min(candidates, key=lambda f: (f.lost_peer, f.time))
            running = None in self._statuses().values() or self.hosts > 1
            if not first.lost_peer or not running or time.monotonic() > until:
                return self._agreed(first)
            time.sleep(0.05)

    def _failure_elsewhere(self, *, now: bool = False) -> Failure | None:
        """The failure that the launcher of some host has made known."""
        if self.hosts == 1 or (not now and time.monotonic() < self._next_look):
            return None
        self._next_look = time.monotonic() + _LOOK_ELSEWHERE
        store: Any = self._store
        return Failure.from_json(store.get(_FAILED).decode()) if store.check([_FAILED]) else None

    def _agreed(self, first: Failure) -> Failure:
        """Makes the failure known to all hosts, unless another one is and is more of a cause."""
        if self.hosts == 1:
            return first
        store: Any = self._store
        known = Failure.from_json(store.compare_set(_FAILED, "", first.to_json()).decode())
        if (first.lost_peer, first.time) < (known.lost_peer, known.time):
            store.set(_FAILED, first.to_json())
            return first
        return known

    def _end_workers(self, by: signal.Signals) -> None:
        context: Any = self._pcontext
        if context is None:
            return
        try:
            context.close(by, self._grace)
        except (SignalException, KeyboardInterrupt):  # asked a second time
            context.close(signal.SIGKILL, self._grace)
        if any(self._statuses().values()) and not self._groups_ended:
            self._groups_ended = True
            for pid in context.pids().values():  # what they started is in their process groups
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(pid, signal.SIGKILL)
        self._outputs.finish()

    def _what_became(self, before: dict[int, int | None]) -> dict[int, str]:
        after, raised = self._statuses(), {f.rank: f for f in self._failures()}
        told = {}
        for local, worker in enumerate(self._worker_group.workers):
            rank = worker.global_rank
            if self.failure is not None and rank == self.failure.rank:
                self.failure = self._with_status(self.failure, after[local], before[local])
            elif before[local] == 0:
                told[rank] = "had finished"
            elif before[local] is not None or (rank in raised and raised[rank].trace):
                told[rank] = f"failed after it: {raised[rank].summary()}"
            elif after[local] == -signal.SIGKILL:
                told[rank] = f"ended because of it; did not end by itself within {self._grace:g} s, so was killed"
            else:
                told[rank] = "ended because of it"
        return told

    def _with_status(self, failure: Failure, after: int | None, before: int | None) -> Failure:
        by_itself = after if after is not None and after > 0 else None  # it was ending when all were asked to
        status = before if before is not None else by_itself
        return Failure(failure.rank, failure.host, failure.pid, status, failure.time, failure.trace)

    def _shutdown(self, death_sig: signal.Signals = signal.SIGTERM, timeout: int = 30) -> None:
        self._end_workers(death_sig)

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        if self.failure is not None:
            number = worker_group.spec.max_restarts - self._remaining_restarts
            where = f"rank {self.failure.rank} (host {self.failure.host}, pid {self.failure.pid})"
            say(f"restart {number} of {worker_group.spec.max_restarts}: {where} failed first: {self.failure.summary()}")
        else:
            say("restart: the hosts have changed; this does not count as a restart")
        super()._restart_workers(worker_group)

    def _exit_barrier(self) -> None:
        """Waits until the workers of all hosts have finished, or one has failed."""
        self._meet(_FINISHED, _LONGEST_BARRIER)
        with suppress(RuntimeError):
            self.failure = self._failure_elsewhere(now=True)

    def part(self) -> None:
        """Lets the other hosts do what they do with the store, which may be this one's, before it goes away."""
        self._meet(_TOLD, _SETTLING * 3)

    def _meet(self, key: str, longest: float) -> None:
        if self.hosts == 1:
            return
        until = time.monotonic() + longest
        store: Any = self._store
        with suppress(RuntimeError):  # the host with the store has left, so all were there
            store.add(key, 1)
            while store.add(key, 0) < self.hosts and time.monotonic() < until:
                if key == _FINISHED and self._failure_elsewhere() is not None:
                    return
                time.sleep(_MEETING)
            time.sleep(4 * _MEETING)  # the others see it, too
