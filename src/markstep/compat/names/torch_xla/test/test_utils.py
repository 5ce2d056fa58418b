"""`torch_xla.test.test_utils`: what example scripts print."""

from markstep.xla.test_helpers import (
    close_summary_writer,
    get_summary_writer,
    mp_test,
    now,
    print_test_update,
    print_training_update,
    write_to_summary,
)

__all__ = [
    "close_summary_writer",
    "get_summary_writer",
    "mp_test",
    "now",
    "print_test_update",
    "print_training_update",
    "write_to_summary",
]
