"""Recording, predicting and running straight-line programs of operator calls."""

from markstep.record.program import Call, Meta, New, Program, Ref, Same, Scalar
from markstep.record.verify import verify

__all__ = ["Call", "Meta", "New", "Program", "Ref", "Same", "Scalar", "verify"]
