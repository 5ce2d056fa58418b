"""`torch_xla.utils.tf_record_reader`: TFRecord files: not supported."""

from typing import Any

from markstep.xla.notices import unsupported_class

_INSTEAD = "use the package tfrecord"
TfRecordReader: Any = unsupported_class("utils.tf_record_reader.TfRecordReader", _INSTEAD)

__all__ = ["TfRecordReader"]
