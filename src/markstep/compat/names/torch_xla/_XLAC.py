"""`torch_xla._XLAC`: private functions that programs are known to call."""

from markstep.xla.internals import (
    _get_executed_fallback_ops,
    _get_git_revs,
    _get_xla_tensor_debug_info,
    _get_xla_tensor_dimension_size,
    _get_xla_tensor_shape_type,
    _get_xla_tensors_hlo,
    _get_xla_tensors_text,
    _init_xla_lazy_backend,
    _prepare_to_exit,
    _xla_dot_general,
    _xla_get_all_devices,
    _xla_get_cpu_tensors,
    _xla_get_default_device,
    _xla_get_default_device_ordinal,
    _xla_get_devices,
    _xla_get_mat_mul_precision,
    _xla_get_rng_seed,
    _xla_get_tensor_id,
    _xla_get_tensor_view_alias_id,
    _xla_increment_counter,
    _xla_memory_info,
    _xla_num_devices,
    _xla_real_devices,
    _xla_runtime_is_initialized,
    _xla_set_default_device,
    _xla_set_mat_mul_precision,
    _xla_set_rng_seed,
    _xla_step_marker,
    _xla_sync_multi,
    _xla_tensors_from_aten,
    _xla_wait_device_ops,
)
from markstep.xla.metrics import clear_counters as _clear_xla_counters
from markstep.xla.metrics import clear_metrics as _clear_xla_metrics
from markstep.xla.metrics import counter_names as _xla_counter_names
from markstep.xla.metrics import counter_value as _xla_counter_value
from markstep.xla.metrics import metric_data as _xla_metric_data
from markstep.xla.metrics import metric_names as _xla_metric_names
from markstep.xla.metrics import metrics_report as _xla_metrics_report
from markstep.xla.metrics import short_metrics_report as _short_xla_metrics_report
from markstep.xla.notices import unsupported

_INSTEAD = "markstep.explain() lists what is compiled"
_set_allow_execution = unsupported("_XLAC._set_allow_execution", _INSTEAD)
_set_buffer_donation = unsupported("_XLAC._set_buffer_donation", _INSTEAD)
_get_buffer_donation = unsupported("_XLAC._get_buffer_donation", _INSTEAD)
_get_xla_sharding_spec = unsupported("_XLAC._get_xla_sharding_spec", _INSTEAD)

__all__ = [
    "_clear_xla_counters",
    "_clear_xla_metrics",
    "_get_buffer_donation",
    "_get_executed_fallback_ops",
    "_get_git_revs",
    "_get_xla_sharding_spec",
    "_get_xla_tensor_debug_info",
    "_get_xla_tensor_dimension_size",
    "_get_xla_tensor_shape_type",
    "_get_xla_tensors_hlo",
    "_get_xla_tensors_text",
    "_init_xla_lazy_backend",
    "_prepare_to_exit",
    "_set_allow_execution",
    "_set_buffer_donation",
    "_short_xla_metrics_report",
    "_xla_counter_names",
    "_xla_counter_value",
    "_xla_dot_general",
    "_xla_get_all_devices",
    "_xla_get_cpu_tensors",
    "_xla_get_default_device",
    "_xla_get_default_device_ordinal",
    "_xla_get_devices",
    "_xla_get_mat_mul_precision",
    "_xla_get_rng_seed",
    "_xla_get_tensor_id",
    "_xla_get_tensor_view_alias_id",
    "_xla_increment_counter",
    "_xla_memory_info",
    "_xla_metric_data",
    "_xla_metric_names",
    "_xla_metrics_report",
    "_xla_num_devices",
    "_xla_real_devices",
    "_xla_runtime_is_initialized",
    "_xla_set_default_device",
    "_xla_set_mat_mul_precision",
    "_xla_set_rng_seed",
    "_xla_step_marker",
    "_xla_sync_multi",
    "_xla_tensors_from_aten",
    "_xla_wait_device_ops",
]
