"""What the engine has to know about an operator, read once from its schema and tags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch

from markstep.record.program import UnknownOp


class Kind(Enum):
    """How a call is treated."""

    LAZY = "deferred to the boundary"
    PASS = "metadata only: always runs, never recorded"
    VALUE = "its result is a Python value, or its shape depends on values"
    OPAQUE = "changes storages or uses objects that a program cannot hold: runs between two programs"


@dataclass(frozen=True, slots=True)
class OpFacts:
    """Facts about one operator overload.

    Attributes:
        kind: see `Kind`.
        writes: positions of arguments that are mutated, and their names.
        promotable: positions and names of arguments whose numbers may become inputs of a program.
        random: draws from a generator.
        rng_state: reads or sets the state of a generator.
        mutates: writes to an argument.
        view: all results look at the storage of an argument.
    """

    kind: Kind
    writes: frozenset[int | str]
    promotable: frozenset[int | str]
    random: bool
    rng_state: bool
    mutates: bool
    view: bool


# Results that depend on metadata alone although they are plain Python values.
_METADATA = {
    "aten::is_same_size", "aten::_fused_sdp_choice", "aten::_has_compatible_shallow_copy_type",
    "aten::_has_same_storage_numel", "aten::is_complex", "aten::is_floating_point", "aten::is_signed", "aten::size",
    "aten::stride", "aten::dim", "aten::numel", "aten::sym_size", "aten::sym_stride", "aten::sym_numel",
    "aten::sym_storage_offset", "aten::storage_offset", "aten::is_contiguous", "aten::is_strides_like_format",
    "aten::is_non_overlapping_and_dense", "aten::sym_is_contiguous", "prim::layout", "prim::device", "aten::_is_zerotensor",
    "aten::is_conj", "aten::is_neg", "aten::is_inference", "aten::result_type", "aten::can_cast",
    "aten::_version", "aten::output_nr", "aten::is_leaf", "aten::retains_grad", "aten::_debug_has_internal_overlap",
}  # fmt: skip
_STORAGE = {
    "aten::set_", "aten::resize_", "aten::resize_as_", "aten::_resize_output_", "aten::resize_as_sparse_", "aten::set_data",
    "aten::resize", "aten::set", "aten::record_stream", "aten::_pin_memory", "aten::pin_memory", "aten::rename_",
    "inductor::resize_storage_bytes_", "fsdp::set_",
}  # fmt: skip
# Their numbers decide on the shape of the result.
_SHAPED = {"aten::arange", "aten::range"}
# Results whose shape depends on values although they have no tag that says so.
_UNTAGGED = {"aten::_pack_padded_sequence", "torchvision::nms"}
_PASS_NAMESPACES = {"profiler", "debugprims", "prim", "prims_meta"}
_VALUE_TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_NUMBERS = {
    "number",
    "float",
    "Optional[number]",
    "Optional[float]",
    "List[number]",
    "List[float]",
    "Optional[List[float]]",
}
_HOLDABLE = (int, float, bool, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format, type(None))


def draws(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Does this call draw from a generator? Attention that is told to drop nothing does not."""
    if not facts(op).random:
        return False
    names = [] if isinstance(op, UnknownOp) else [a.name for a in op._schema.arguments]
    if "dropout_p" not in names:
        return True
    position = names.index("dropout_p")
    default = op._schema.arguments[position].default_value
    return bool((args[position] if position < len(args) else kwargs.get("dropout_p", default)) != 0.0)


@cache
def facts(op: Any) -> OpFacts:
    """Reads the facts about an operator overload from its schema, tags and name."""
    if isinstance(op, UnknownOp):
        return OpFacts(Kind.LAZY, frozenset(), frozenset(), bool(op.tags), False, False, False)
    schema, tags, name = op._schema, set(op.tags), op._schema.name
    writes: set[int | str] = set()
    promotable: set[int | str] = set()
    for i, a in enumerate(schema.arguments):
        if a.alias_info is not None and a.alias_info.is_write:
            writes |= {i, a.name}
        number = str(a.type) in _NUMBERS or str(a.type) in ("Tensor", "Optional[Tensor]")  # an operand may be a number
        if number and name not in _SHAPED:
            promotable |= {i, a.name}
    if op.namespace in _PASS_NAMESPACES or name in _METADATA:
        kind = Kind.PASS
    elif name in _STORAGE or "GeneratorState" in str(schema) or "__torch__.torch.classes" in str(schema):
        kind = Kind.OPAQUE
    elif torch.Tag.inplace_view in tags:
        kind = Kind.PASS
    elif tags & _VALUE_TAGS or name in _UNTAGGED or not _gives_tensors(schema):
        kind = Kind.VALUE
    else:
        kind = Kind.LAZY
    return OpFacts(
        kind,
        frozenset(writes),
        frozenset(promotable),
        torch.Tag.nondeterministic_seeded in tags,
        op.namespace == "markstep" and name.endswith("rng_state"),
        bool(writes),
        not writes and bool(schema.returns) and all(r.alias_info is not None for r in schema.returns),
    )


def _gives_tensors(schema: Any) -> bool:
    """Tensors, and with them at most integers, which attention kernels return as facts about shapes."""
    kinds = ["Tensor" if "Tensor" in str(r.type) else str(r.type) for r in schema.returns]
    return not kinds or ("Tensor" in kinds and set(kinds) <= {"Tensor", "int", "SymInt"})


def is_holdable(value: Any) -> bool:
    """Can a program hold this argument (other than a tensor) as a constant?"""
    if isinstance(value, (list, tuple)):
        return all(isinstance(v, torch.Tensor) or is_holdable(v) for v in value)
    return type(value) in _HOLDABLE or isinstance(value, (torch.dtype, torch.layout, torch.memory_format))
