"""torch_xla's tests whose subject is XLA itself: its text, its computation builder, its buffers. They are out of scope.

A test that merely looks at XLA's text on the way (whether printing runs a graph once, say) stays in scope.
"""

from __future__ import annotations

_OPERATIONS = "test_operations.py"
_TEXT = "asserts how XLA writes the shape of a node in its private text"
_BUILDER = "builds an XLA computation by hand with xla_builder"
_LOWERING = "reads the HLO that a lowering context produced"

OUT_OF_SCOPE = {
    f"{_OPERATIONS}::{name}": reason
    for name, reason in {
        "TestAtenXlaTensor::test_view_as_real_c64": _TEXT,
        "TestAtenXlaTensor::test_view_as_real_c128": _TEXT,
        "TestAtenXlaTensor::test_view_as_complex_f32": _TEXT,
        "TestAtenXlaTensor::test_view_as_complex_f64": _TEXT,
        "TestAtenXlaTensor::test_pow_constant": "asserts which node kind XLA's text shows for an exponent",
        "TestDebuggingUtil::test_get_xla_tensor_debug_info": "asserts the wording of XLA's description of a tensor",
        "TestActivationCheckpoint::test_opt_barrier": "counts shapes in the opt-barrier line of the HLO text",
        "TestLoweringContext::test_api": _LOWERING,
        "TestLoweringContext::test_get_parameters_scalar": _LOWERING,
        "TestOpBuilder::test_add": _BUILDER,
        "TestOpBuilder::test_mul": _BUILDER,
        "TestOpBuilder::test_conditional": _BUILDER,
        "TestOpBuilder::test_while": _BUILDER,
        "TestOpBuilder::test_triangular_solve": _BUILDER,
        "TestOpBuilder::test_type_conversion": "converts between xla_builder's element types",
        "TestDataType::test_mixed_dtype_tuple": _BUILDER,
        "TestGeneric::test_git_revisons": "asks from which revision of XLA the library was built",
        "TestGeneric::test_unsafe_buffer_pointer": "asks for addresses of PJRT buffers",
        "TestAtenXlaTensor::test_replace_xla_tensor": "counts how many C++ tensor objects a private function destroys",
    }.items()
}
