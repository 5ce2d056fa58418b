"""Loaders: containers keep their types, every batch ends a step, errors arrive where the batch is asked for."""

from collections import OrderedDict, namedtuple

import pytest
import torch

from markstep.xla import loader, metrics, structures

Pair = namedtuple("Pair", "x y")
XLA = torch.device("xla:0")


def _mark_steps() -> int:
    return metrics.counter_value("MarkStep") or 0


def test_containers_keep_their_types() -> None:
    batch = (torch.ones(1), [torch.zeros(2)], {"a": torch.ones(1)}, OrderedDict(b=torch.ones(1)), Pair(torch.ones(1), "text"))
    (moved,) = list(loader.MpDeviceLoader([batch], XLA))
    assert [type(v) for v in moved] == [type(v) for v in batch] and type(moved) is tuple
    assert moved[0].device == moved[1][0].device == moved[3]["b"].device == moved[4].x.device == XLA
    assert moved[4].y == "text"


@pytest.mark.parametrize("threads", [1, 3])
def test_batches_come_in_order(threads: int) -> None:
    batches = [torch.tensor([i]) for i in range(20)]
    got = [b.item() for b in loader.MpDeviceLoader(batches, XLA, host_to_device_transfer_threads=threads)]
    assert got == list(range(20))


def test_a_step_ends_before_every_batch_and_at_the_end() -> None:
    before = _mark_steps()
    seen = [_mark_steps() - before for _ in loader.MpDeviceLoader([torch.ones(1)] * 3, XLA)]
    assert seen == [1, 2, 3] and _mark_steps() - before == 4


def test_several_batches_may_be_one_step() -> None:
    before = _mark_steps()
    seen = [_mark_steps() - before for _ in loader.MpDeviceLoader([torch.ones(1)] * 4, XLA, batches_per_execution=2)]
    assert seen == [0, 1, 1, 2]


def test_an_error_of_the_loader_is_raised_by_next() -> None:
    def broken():
        yield torch.ones(1)
        raise KeyError("no such sample")

    batches = iter(loader.MpDeviceLoader(broken(), XLA))
    next(batches)
    with pytest.raises(KeyError, match="no such sample"):
        next(batches)


def test_iterating_again_starts_anew() -> None:
    batches = loader.MpDeviceLoader([torch.tensor([i]) for i in range(50)], XLA)
    assert next(iter(batches)).item() == 0
    assert [b.item() for b in batches] == list(range(50)) and len(batches) == 50


def test_the_batch_is_a_copy() -> None:
    data = torch.zeros(2)
    structures.send_cpu_data_to_device([data], XLA)[0].add_(1)
    assert data.tolist() == [0, 0]


def test_a_tensor_alone_is_sent_as_a_list() -> None:
    (sent,) = structures.send_cpu_data_to_device(torch.ones(2), XLA)
    assert sent.device == XLA and sent.tolist() == [1, 1]


def test_every_object_is_visited_once() -> None:
    shared = ["a", 7]
    data = {"a": shared, "b": (shared, 7)}
    data["again"] = data
    seen, replaced = [], []
    structures.for_each_instance(data, lambda v: isinstance(v, str | int), seen.append)
    new = structures.for_each_instance_rewrite(data, lambda v: isinstance(v, str | int), lambda v: (replaced.append(v), v)[1])
    assert seen == replaced == ["a", 7, "b", "again"]
    assert new["a"] == ["a", 7] and new["b"][0] is new["a"]


def test_a_wrapped_loader_keeps_its_attributes() -> None:
    """Accelerate's save_state asks for `dataset`; early scripts say `loader=`."""
    data = torch.utils.data.TensorDataset(torch.arange(4.0))
    wrapped = loader.MpDeviceLoader(torch.utils.data.DataLoader(data, batch_size=2), "xla:0")
    assert wrapped.dataset is data and not hasattr(wrapped, "missing")
    early = loader.ParallelLoader(loader=[torch.ones(2)], devices=["xla:0"])
    assert next(early.per_device_loader("xla:0")).tolist() == [1, 1]
    early.close()
    with pytest.raises(TypeError, match="are needed"):
        loader.ParallelLoader(devices=["xla:0"])
