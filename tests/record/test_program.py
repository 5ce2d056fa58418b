"""The intermediate representation: what is recorded, how it prints, pickles and is checked."""

import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.helpers import EXACT, check_programs, collect_sites
from torch import nn

import markstep
from markstep.record import New, Program, Ref, Same, Scalar, verify
from markstep.record.program import find_op, leaves, map_leaves


def recorded(step: Any, times: int = 3) -> list[Program]:
    """The programs that some runs of a step leave in its tree, longest first."""
    with collect_sites() as sites:
        compiled = markstep.compile(step, **EXACT)
        for i in range(times):
            compiled(i)
    return sorted((e.program() for e in check_programs(sites)), key=lambda p: -len(p.calls))


def small_program() -> Program:
    weight, x = nn.Parameter(torch.ones(3, 2)), torch.ones(4, 2)

    def step(i: int) -> Any:
        out = x @ weight.t()
        total = out.sum() * (1.0 + i)
        weight.detach().add_(1)
        return total

    return recorded(step)[0]


def test_calls_of_a_program() -> None:
    program = small_program()
    names = [c.op.name() for c in program.calls]
    assert names == ["aten::t", "aten::mm", "aten::sum", "aten::mul.Tensor", "aten::detach", "aten::add_.Tensor"]
    view, mm, _, mul, detach, add = program.calls
    assert isinstance(view.args[0], Ref) and isinstance(view.outs, Ref) and view.outs.slot == view.args[0].slot == 0
    assert view.outs.meta[:3] == ((2, 3), (1, 2), 0)
    assert isinstance(mm.outs, New) and mm.outs.nbytes == 4 * 3 * 4
    assert mul.args[1] == Scalar(float), "the factor changes every step"
    assert add.outs == Same(0) and add.writes == (0,) and detach.outs.slot == 0
    assert all("test_program.py" in c.source for c in program.calls)
    assert list(program.inputs) == [0, 1] and program.mutated == {0}
    assert program.live == {mul.outs.slot}


def test_printing() -> None:
    lines = str(small_program()).splitlines()
    assert lines[0] == "program: 6 calls, 2 inputs, 1 results"
    assert lines[1] == "  s0: cpu f32[3, 2], cpu f32[2, 3]  (updated in place)"
    assert lines[2] == "  s1: cpu f32[4, 2]"
    assert lines[4].startswith("  s2 = aten.mm(s1, s0)  # cpu f32[4, 3]; ") and "test_program.py:" in lines[4]
    assert lines[6].startswith("  s4 = aten.mul.Tensor(s3, <float input>)  # cpu f32[]; ")
    assert lines[8].startswith("  arg0 = aten.add_.Tensor(s0, 1)")
    assert lines[-1] == "  return s4"


def test_pickling() -> None:
    program = small_program()
    again = pickle.loads(pickle.dumps(program))
    assert again == program and str(again) == str(program)
    assert again.calls[0].op is program.calls[0].op


def test_equal_steps_give_equal_programs() -> None:
    assert small_program().calls[:3] == small_program().calls[:3]


def test_early_calls_are_marked() -> None:
    lengths, x = torch.tensor([1, 2, 3]), torch.ones(3)

    def step(i: int) -> Any:
        out = x * 2
        longest = lengths.max().item()
        return out + longest

    program = recorded(step)[0]
    early = [program.calls[i].op.name() for i in sorted(program.done)]
    assert early == ["aten::max", "aten::_local_scalar_dense"]
    assert "  [early] s" in str(program)
    assert [program.calls[i].op.name() for i in program.pending] == ["aten::mul.Tensor", "aten::add.Tensor"]


def broken(change: Any) -> Program:
    program = small_program()
    return replace(program, calls=tuple(change(list(program.calls))))


def test_verifier_names_the_call() -> None:
    verify(small_program())
    with pytest.raises(AssertionError, match=r"call 0 .*aten\.sum.*s2 is used before s0"):
        verify(broken(lambda calls: calls[2:]))
    with pytest.raises(AssertionError, match=r"call 5 .*add_.*writes to something that is no argument"):
        verify(broken(lambda calls: [*calls[:5], replace(calls[5], writes=(1,))]))
    with pytest.raises(AssertionError, match=r"call 2 .*mm.*new s2, s3 was expected"):
        verify(broken(lambda calls: [*calls[:2], calls[1]]))
    with pytest.raises(AssertionError, match=r"call 5 .*no tensor argument 3"):
        verify(broken(lambda calls: [*calls[:5], replace(calls[5], outs=Same(3))]))
    with pytest.raises(AssertionError, match=r"results \[9\] are allocated by no call"):
        verify(replace(small_program(), live=frozenset({9})))
    with pytest.raises(AssertionError, match=r"call 2 .*runs early but reads s2"):
        verify(replace(small_program(), done=frozenset({2})))


def test_leaves_and_map_leaves_keep_the_nesting() -> None:
    nested = [1, (2, [3, ()]), 4]
    assert list(leaves(nested)) == [1, 2, 3, 4]
    assert map_leaves(lambda v: v + 1, nested) == [2, (3, [4, ()]), 5]


def test_find_op() -> None:
    assert find_op("aten::add.Tensor") is torch.ops.aten.add.Tensor
    assert find_op("aten::mm") is torch.ops.aten.mm.default


def test_numbers_become_inputs_once() -> None:
    """A constant that changes becomes an input; one that never changes stays."""
    x = torch.ones(3)
    program = recorded(lambda i: x * (i + 0.5) + 3.0, times=6)[0]
    assert program.calls[0].args[1] == Scalar(float)
    assert program.calls[1].args[1] == 3.0
    assert len(markstep.explain().programs) == 1 and markstep.explain().compiled_steps >= 3


def test_grad_mode_is_part_of_a_call() -> None:
    """OneDNN's LSTM keeps a workspace for the backward pass only in grad mode."""
    weight = nn.Parameter(torch.ones(3))

    def step(i: int) -> Any:
        with torch.set_grad_enabled(i % 2 == 0):
            return weight * 2

    programs = recorded(step, times=8)
    assert sorted(p.calls[0].grad for p in programs) == [False, True]
    assert markstep.explain().compiled_steps >= 4
