"""What of torch_xla there is here: every name, the environment variables, SageMaker Training Compiler's names.

`tools/compat_table.py` writes docs/compat.md from this, and tests/xla/test_compat.py compares it with the modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

State = Literal["works", "no effect", "deprecated", "raises"]


@dataclass(frozen=True)
class Entry:
    """A name of torch_xla.

    Attributes:
        name: in full, such as "torch_xla.core.xla_model.mark_step".
        since: the first release of torch_xla that has it; "1.9" for older ones, "-" if torch_xla has it elsewhere only.
        state: "works"; "no effect" (accepted, does nothing); "deprecated" (works, with a DeprecationWarning that names the
            release); "raises" (can be imported; the call raises NotImplementedError).
        notes: differences; why no effect is right; since when it is deprecated and what to use; what to use instead.
    """

    name: str
    since: str
    state: State
    notes: str = ""


@dataclass(frozen=True)
class Setting:
    """An environment variable, or something of SageMaker Training Compiler.

    Attributes:
        name: as it is written.
        state: "works", or "no effect" (Markstep does not read it).
        effect: what it does here; why no effect is right.
    """

    name: str
    state: Literal["works", "no effect"]
    effect: str


def _module(module: str, *groups: tuple[State, str, str, str]) -> Iterator[Entry]:
    """The entries of a module from groups (state, since, names, notes)."""
    for state, since, names, notes in groups:
        for name in names.split():
            yield Entry(f"{module}.{name}", since, state, notes)


ENTRIES: tuple[Entry, ...] = (
    *_module(
        "torch_xla",
        ("works", "1.9", "_XLAC __version__ amp core debug distributed utils", ""),
        ("works", "1.13", "experimental", ""),
        ("works", "2.1", "runtime stablehlo", ""),
        ("works", "2.3", "real_devices", ""),
        ("works", "2.4", "step", ""),
        ("works", "2.8", "backends", ""),
        ("works", "2.0", "_found_libtpu", "always False"),
        ("works", "2.2", "tpu", "torch_xla._internal.tpu"),
        ("works", "2.3", "device_count", "always 1"),
        ("works", "2.3", "device", "index must be None or 0: one device for each process"),
        ("works", "2.3", "devices", "one for each process"),
        ("works", "2.4", "sync", "wait and reset_scope have no effect: values are there when it returns"),
        ("works", "2.5", "compile", "full_graph raises if a value is read inside; name and max_different_graphs have no effect"),
        ("works", "2.5", "launch", "processes, no threads; under torchrun in this process"),
        ("works", "2.5", "manual_seed", "torch.manual_seed does the same"),
        ("raises", "2.1", "save_as_stablehlo save_torch_model_as_stablehlo", "use torch.export"),
    ),
    *_module(
        "torch_xla._XLAC",
        (
            "works",
            "1.9",
            "_get_git_revs _prepare_to_exit _xla_counter_names _xla_counter_value _xla_get_all_devices _xla_get_cpu_tensors "
            "_xla_get_default_device _xla_get_devices _xla_get_rng_seed _xla_memory_info _xla_metric_data _xla_metric_names "
            "_xla_metrics_report _xla_real_devices _xla_set_default_device _xla_set_rng_seed _xla_step_marker "
            "_xla_tensors_from_aten _xla_wait_device_ops",
            "",
        ),
        ("works", "1.13", "_init_xla_lazy_backend _xla_get_default_device_ordinal _xla_num_devices", ""),
        ("works", "2.0", "_clear_xla_counters _clear_xla_metrics _short_xla_metrics_report", ""),
        ("works", "2.4", "_get_executed_fallback_ops _xla_increment_counter", ""),
        ("works", "2.5", "_xla_set_mat_mul_precision", ""),
        ("works", "2.8", "_xla_get_mat_mul_precision", ""),
        ("works", "1.9", "_xla_sync_multi", "fills all live tensors"),
        ("works", "1.9", "_xla_get_tensor_view_alias_id", "number of the memory, the same for views"),
        ("works", "1.9", "_xla_get_tensor_id", "number of the memory, the same for views; for accelerate"),
        ("works", "2.1", "_get_xla_tensor_debug_info", "device and shape, no graph"),
        ("works", "2.2", "_xla_runtime_is_initialized", "always True"),
        (
            "works",
            "1.9",
            "_get_xla_tensors_hlo _get_xla_tensors_text",
            "a value each, no graph: markstep.explain() lists what is compiled",
        ),
        ("works", "1.9", "_get_xla_tensor_dimension_size", ""),
        ("works", "2.1", "_get_xla_tensor_shape_type", ""),
        ("works", "2.5", "_xla_dot_general", ""),
        ("raises", "1.13", "_get_xla_sharding_spec", "markstep.explain() lists what is compiled"),
        ("raises", "2.3", "_get_buffer_donation _set_buffer_donation", "markstep.explain() lists what is compiled"),
        ("raises", "2.5", "_set_allow_execution", "markstep.explain() lists what is compiled"),
    ),
    *_module(
        "torch_xla._dynamo",
        ("works", "2.5", "config", ""),
    ),
    *_module(
        "torch_xla._dynamo.config",
        ("no effect", "2.5", "skip_input_data_check", "there is no such check"),
    ),
    *_module(
        "torch_xla._dynamo.dynamo_backend2",
        ("raises", "2.4", "dynamo_backend", "use torch_xla.compile or markstep.compile"),
    ),
    *_module(
        "torch_xla._dynamo.dynamo_bridge",
        (
            "works",
            "2.5",
            "extract_compiled_graph",
            "what repeats is compiled; torch.compile with backend 'openxla' does not work yet",
        ),
        ("no effect", "2.5", "alias_with_buffer_donor_config", "programs overwrite what the step overwrites"),
    ),
    *_module(
        "torch_xla._internal.gpu",
        ("works", "2.1", "num_local_processes", "torch_xla.runtime.local_process_count"),
    ),
    *_module(
        "torch_xla._internal.jax_workarounds",
        (
            "raises",
            "2.8",
            "jax_env_context jax_import_guard requires_jax",
            "write it with PyTorch operators, which Markstep compiles",
        ),
    ),
    *_module(
        "torch_xla._internal.neuron",
        ("raises", "2.1", "initialize_env num_local_processes", "Markstep runs on CPU and CUDA devices"),
    ),
    *_module(
        "torch_xla._internal.pjrt",
        ("raises", "2.1", "initialize_multiprocess", "use torch_xla.launch or torchrun"),
        ("works", "2.1", "spawn_threads", "a call in this process, which has one device"),
        ("works", "2.1", "run_multiprocess", "processes; results are pickled"),
        (
            "works",
            "2.1",
            "spawn",
            "torch_xla.distributed.xla_multiprocessing.spawn with other defaults and order of arguments",
        ),
    ),
    *_module(
        "torch_xla._internal.tpu",
        ("works", "2.1", "version", "there are no TPUs: -1"),
        ("works", "2.1", "num_available_chips num_available_devices num_tpu_workers", "there are no TPUs: 0"),
        ("raises", "2.1", "get_tpu_env get_worker_ips", "Markstep runs on CPU and CUDA devices"),
    ),
    *_module(
        "torch_xla._internal.utils",
        ("works", "2.5", "parse_xla_device", ""),
    ),
    *_module(
        "torch_xla._internal.xpu",
        ("raises", "2.1", "num_local_processes", "Markstep runs on CPU and CUDA devices"),
    ),
    *_module(
        "torch_xla._patched_functions",
        ("works", "2.1", "clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"),
    ),
    *_module(
        "torch_xla.amp",
        ("works", "1.11", "syncfree", ""),
        ("works", "1.9", "autocast", "bf16, fp16 on CUDA; works on the CPU, too"),
        ("works", "1.9", "GradScaler", "gone in 2.9; ends the step unless the optimizer takes found_inf (amp.syncfree)"),
    ),
    *_module(
        "torch_xla.amp.autocast_mode",
        ("works", "2.4", "custom_bwd custom_fwd", "torch.amp's for the xla device"),
        ("works", "1.9", "autocast", "bf16, fp16 on CUDA; works on the CPU, too"),
    ),
    *_module(
        "torch_xla.amp.grad_scaler",
        ("works", "1.9", "GradScaler", "gone in 2.9; ends the step unless the optimizer takes found_inf (amp.syncfree)"),
    ),
    *_module(
        "torch_xla.amp.syncfree",
        ("works", "1.11", "Adam AdamW SGD", ""),
    ),
    *_module(
        "torch_xla.amp.syncfree.adam",
        ("works", "1.11", "Adam", ""),
    ),
    *_module(
        "torch_xla.amp.syncfree.adamw",
        ("works", "1.11", "AdamW", ""),
    ),
    *_module(
        "torch_xla.amp.syncfree.sgd",
        ("works", "1.11", "SGD", ""),
    ),
    *_module(
        "torch_xla.backends",
        ("works", "2.8", "get_mat_mul_precision", "'highest' unless set, which is PyTorch's default"),
        ("works", "2.8", "set_mat_mul_precision", "torch.set_float32_matmul_precision"),
    ),
    *_module(
        "torch_xla.core.dynamo_bridge",
        (
            "works",
            "2.0",
            "extract_compiled_graph",
            "what repeats is compiled; torch.compile with backend 'openxla' does not work yet",
        ),
        ("no effect", "2.3", "alias_with_buffer_donor_config", "programs overwrite what the step overwrites"),
    ),
    *_module(
        "torch_xla.core.functions",
        ("works", "1.9", "nms", "reads a value, which ends the step"),
        ("works", "1.9", "AllGather AllReduce all_gather all_reduce distributed_mm", ""),
        ("works", "1.10", "AllReduceSumLayer SyncBatchNorm", ""),
    ),
    *_module(
        "torch_xla.core.xla_builder",
        (
            "raises",
            "1.9",
            "Op Shape Type computation_from_module_proto create_builder create_computation get_computation_hlo mkleaf mkop "
            "mkparam mkshape tensor_shape",
            "write it with PyTorch operators, which Markstep compiles",
        ),
        (
            "raises",
            "2.7",
            "call_jax create_placeholder_tensor jax_func_to_xla_computation",
            "write it with PyTorch operators, which Markstep compiles",
        ),
        ("raises", "2.8", "xla_computation_as_func", "write it with PyTorch operators, which Markstep compiles"),
    ),
    *_module(
        "torch_xla.core.xla_env_vars",
        (
            "works",
            "1.9",
            "CLOUD_TPU_TASK_ID DEVICE_MAP HOST_WORLD_SIZE LOCAL_ORDINAL LOCAL_WORKER MP_DEVICE ORDINAL TORCH_DIST_METHOD "
            "TORCH_DIST_ROOT TPUVM_MODE TPU_CHIPS_PER_HOST_BOUNDS TPU_CONFIG TPU_HOST_BOUNDS TPU_MESH_CTLER_ADDR "
            "TPU_MESH_CTLER_PORT TPU_NUM_DEVICES WORKERS",
            "a name; Markstep does not read the variable",
        ),
        (
            "works",
            "1.9",
            "CPU_NUM_DEVICES GPU_NUM_DEVICES HOST_ORDINAL SERVICE_ADDRESS WORLD_SIZE",
            "a name; Markstep reads the variable",
        ),
        (
            "works",
            "1.13",
            "PJRT_CPU_ASYNC_CLIENT TPU_CHIPS_PER_PROCESS_BOUNDS TPU_PROCESS_ADDRESSES TPU_PROCESS_BOUNDS TPU_PROCESS_PORT "
            "TPU_VISIBLE_CHIPS",
            "a name; Markstep does not read the variable",
        ),
        ("works", "1.13", "PJRT_DEVICE", "a name; Markstep reads the variable"),
        (
            "works",
            "2.0",
            "ACCELERATOR_TYPE PJRT_DIST_SERVICE_ADDR PJRT_GPU_ASYNC_CLIENT PJRT_LOCAL_PROCESS_COUNT PJRT_LOCAL_PROCESS_RANK "
            "PJRT_SELECT_DEFAULT_DEVICE TPU_ACCELERATOR_TYPE TPU_SKIP_MDS_QUERY TPU_WORKER_HOSTNAMES TPU_WORKER_ID WORKER_ID",
            "a name; Markstep does not read the variable",
        ),
        ("works", "2.0", "LOCAL_RANK", "a name; Markstep reads the variable"),
        ("works", "2.2", "LOCAL_WORLD_SIZE RANK", "a name; Markstep reads the variable"),
        ("works", "2.3", "PJRT_DYNAMIC_PLUGINS", "a name; Markstep does not read the variable"),
        ("works", "2.5", "ZERO_COPY_ENABLED", "a name; Markstep does not read the variable"),
    ),
    *_module(
        "torch_xla.core.xla_model",
        ("raises", "2.3", "CoalescingBuckets", "use xm.all_gather_bucketized or xm.reduce_scatter_bucketized"),
        ("works", "1.9", "DeviceContext", "the device only"),
        (
            "works",
            "1.9",
            "REDUCE_AND REDUCE_MAX REDUCE_MIN REDUCE_MUL REDUCE_OR REDUCE_SUM RateTracker ToXlaTensorArena add_step_closure "
            "check_view_sharing do_on_ordinals get_local_ordinal is_master_ordinal is_xla_tensor master_print "
            "xla_real_devices",
            "",
        ),
        ("works", "2.1", "broadcast_master_param", ""),
        ("works", "2.3", "fork_rng", ""),
        ("works", "2.4", "MemoryInfo", ""),
        ("works", "1.9", "xla_device_hw", "'CPU' or 'CUDA', or what MARKSTEP_XLA_HARDWARE says"),
        (
            "works",
            "1.9",
            "get_xla_supported_devices",
            "always ['xla:0']; a kind of hardware, as before 2.6, is accepted with a DeprecationWarning",
        ),
        ("works", "1.9", "rendezvous", "ends the step; the tag has no effect"),
        ("works", "1.9", "mesh_reduce", "ends the step; the tag has no effect; tensors arrive on the CPU"),
        ("works", "1.9", "unlazy wait_device_ops", "fills all live tensors"),
        ("works", "1.9", "send_cpu_data_to_device", "input_sharding raises"),
        ("works", "1.9", "save", "no rendezvous, as since 2.1; container types are kept, ties are stored once"),
        ("works", "1.9", "collective_permute", "not in compiled programs: inputs are computed first"),
        (
            "works",
            "1.9",
            "all_gather all_reduce all_to_all",
            "not in compiled programs: inputs are computed first; pin_layout has no effect",
        ),
        ("works", "1.9", "get_memory_info", "on the CPU that of the process"),
        ("works", "1.9", "optimizer_step reduce_gradients", "pin_layout has no effect"),
        ("works", "1.9", "_run_step_closures", "private"),
        ("works", "1.9", "_maybe_convert_to_cpu", "private; for transformers and accelerate"),
        ("works", "1.9", "_fetch_gradients", "private; for transformers, accelerate and scripts"),
        (
            "works",
            "1.9",
            "set_rng_state",
            "seeds the CPU's numbers, too; a state of that seed that torch.set_rng_state has just restored stays",
        ),
        ("works", "1.9", "get_rng_state", "the seed: drawing numbers does not change it"),
        ("works", "1.9", "xla_replication_devices", "those of all processes"),
        ("works", "1.10", "reduce_scatter", "not in compiled programs: inputs are computed first; pin_layout has no effect"),
        ("works", "1.13", "collective_broadcast", "not in compiled programs: inputs are computed first"),
        ("works", "2.1", "xla_rendezvous", "ends the step; the tag has no effect"),
        ("works", "2.3", "all_gather_bucketized reduce_scatter_bucketized", "as for a list; the size of buckets has no effect"),
        ("works", "2.5", "all_reduce_bucketized_gradients", "pin_layout has no effect"),
        ("works", "2.6", "xla_device_kind", "name of the GPU's model, or 'cpu'"),
        ("no effect", "1.9", "set_replication", "processes find each other without it"),
        ("no effect", "1.12", "optimization_barrier_", "Markstep never merges a recomputation with what it repeats"),
        ("deprecated", "1.9", "parse_xla_device", "since 2.5 (gone in 2.7): str(device).split(':')"),
        ("deprecated", "1.9", "get_ordinal", "since 2.5 (gone in 2.7): torch_xla.runtime.global_ordinal"),
        ("deprecated", "1.9", "xrt_world_size", "since 2.5 (gone in 2.7): torch_xla.runtime.world_size"),
        ("deprecated", "1.9", "xla_device", "since 2.8: torch_xla.device; devkind has no effect"),
        ("deprecated", "1.9", "mark_step", "since 2.8: torch_xla.sync"),
        ("raises", "1.12", "recv send", "use xm.collective_permute"),
        ("raises", "2.1", "get_stablehlo_bytecode", "use torch.export"),
        ("raises", "2.1", "get_stablehlo", "use torch.export; markstep.explain() lists what is compiled"),
    ),
    *_module(
        "torch_xla.core.xla_op_registry",
        ("raises", "1.9", "Op register", "use torch.library.custom_op"),
    ),
    *_module(
        "torch_xla.debug.graph_saver",
        ("raises", "1.9", "save_tensors_graph", "markstep.explain() lists what is compiled"),
    ),
    *_module(
        "torch_xla.debug.metrics",
        ("works", "1.9", "counter_value metric_names metrics_report", ""),
        (
            "works",
            "1.9",
            "metric_data",
            "LazyTracing, EagerOpExecuteTime and transfers of torch.tensor(..., device='xla') are counted, not timed",
        ),
        ("works", "2.0", "clear_all clear_counters clear_metrics short_metrics_report", ""),
        ("works", "1.9", "counter_names", "xla::add counts every form of add; counters of XLA's own parts are not there"),
        ("works", "2.4", "executed_fallback_ops", "operators whose result the host reads, such as aten::nonzero"),
    ),
    *_module(
        "torch_xla.debug.metrics_compare_utils",
        ("works", "1.9", "get_data_points_from_metrics_reports parse_metrics_report", ""),
        ("works", "1.9", "compare_metrics", "config with expressions raises: they would be evaluated as code"),
    ),
    *_module(
        "torch_xla.debug.metrics_saver",
        ("works", "1.9", "save_metrics", ""),
    ),
    *_module(
        "torch_xla.debug.model_comparator",
        ("works", "1.9", "compare compare_tensors save tensor_file_compare", ""),
        ("works", "1.9", "configure", "MARKSTEP_COMPARE_DIR is the folder before the first call"),
    ),
    *_module(
        "torch_xla.debug.profiler",
        ("works", "1.9", "StepTrace Trace get_tracer_marked_step set_tracer_marked_step", ""),
        ("works", "2.1", "trace_me", ""),
        ("works", "1.9", "trace", "of this process only, by torch.profiler; another machine raises"),
        ("works", "2.2", "trace_detached", "of this process only, by torch.profiler"),
        ("works", "2.7", "start_trace stop_trace", "by torch.profiler: files for Perfetto"),
        ("no effect", "1.9", "start_server", "nothing listens on the port: trace of the same process needs no server"),
    ),
    *_module(
        "torch_xla.distributed.data_parallel",
        ("works", "1.9", "Context", ""),
        ("works", "1.9", "DataParallel", "one device: several need several processes"),
    ),
    *_module(
        "torch_xla.distributed.fsdp",
        ("works", "1.12", "checkpoint_module", ""),
        (
            "raises",
            "1.12",
            "XlaFullyShardedDataParallel consolidate_sharded_model_checkpoints consolidate_sharded_state_dicts",
            "use torch.distributed.fsdp, or ZeroRedundancyOptimizer",
        ),
    ),
    *_module(
        "torch_xla.distributed.fsdp.consolidate_sharded_ckpts",
        ("raises", "1.12", "main", "use torch.distributed.fsdp, or ZeroRedundancyOptimizer"),
    ),
    *_module(
        "torch_xla.distributed.fsdp.state_dict_utils",
        (
            "raises",
            "1.12",
            "consolidate_sharded_model_checkpoints consolidate_sharded_state_dicts",
            "use torch.distributed.fsdp, or ZeroRedundancyOptimizer",
        ),
    ),
    *_module(
        "torch_xla.distributed.fsdp.utils",
        ("works", "1.13", "XLAPatchedLinear", ""),
        ("works", "1.12", "checkpoint_module", ""),
        ("no effect", "1.13", "apply_xla_patch_to_nn_linear", "gives the module itself: the patch is for XLA's compiler"),
    ),
    *_module(
        "torch_xla.distributed.fsdp.wrap",
        (
            "works",
            "2.0",
            "always_wrap_policy lambda_auto_wrap_policy recursive_wrap size_based_auto_wrap_policy transformer_auto_wrap_policy",
            "",
        ),
    ),
    *_module(
        "torch_xla.distributed.fsdp.xla_fully_sharded_data_parallel",
        ("raises", "1.12", "XlaFullyShardedDataParallel", "use torch.distributed.fsdp, or ZeroRedundancyOptimizer"),
    ),
    *_module(
        "torch_xla.distributed.parallel_loader",
        ("works", "1.9", "PerDeviceQueue", "the queues only; ParallelLoader does not use it"),
        ("works", "1.9", "PerDeviceLoader", ""),
        ("works", "1.9", "ParallelLoader", "container types are kept; batchdim has no effect; input_sharding raises"),
        ("works", "1.9", "MpDeviceLoader", "container types are kept; input_sharding raises; other attributes are the loader's"),
    ),
    *_module(
        "torch_xla.distributed.sm_dist",
        ("works", "1.9", "main", "SageMaker builds only: python -m torch_xla.distributed.sm_dist"),
    ),
    *_module(
        "torch_xla.distributed.spmd",
        (
            "raises",
            "2.4",
            "_mark_manual_sharding",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        ("works", "2.3", "get_global_mesh", "always None: no mesh can be set"),
        (
            "raises",
            "2.2",
            "HybridMesh Mesh ShardingSpec ShardingType XLAPatchedLinear XLAShard XLAShardedTensor clear_sharding "
            "mark_sharding wrap_if_sharded xla_distribute_module xla_distribute_tensor xla_patched_nn_linear_forward",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.3",
            "auto_policy set_global_mesh",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.4",
            "disable_manual_sharding enable_manual_sharding",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.5",
            "apply_backward_optimization_barrier get_1d_mesh",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.8",
            "annotate_custom_sharding mark_sharding_with_gradients shard_as",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "-",
            "MarkShardingFunction",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
    ),
    *_module(
        "torch_xla.distributed.spmd.api",
        (
            "raises",
            "2.2",
            "convert_to_xla_mesh convert_to_xla_partition_spec xla_distribute_module xla_distribute_tensor",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.3",
            "auto_policy",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
    ),
    *_module(
        "torch_xla.distributed.spmd.debugging",
        (
            "raises",
            "2.2",
            "visualize_sharding visualize_tensor_sharding",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
    ),
    *_module(
        "torch_xla.distributed.spmd.xla_sharded_tensor",
        (
            "raises",
            "2.2",
            "XLAShard XLAShardedTensor",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
    ),
    *_module(
        "torch_xla.distributed.spmd.xla_sharding",
        (
            "raises",
            "2.4",
            "_mark_manual_sharding",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        ("works", "2.2", "PartitionSpec", "a type"),
        ("works", "2.3", "get_global_mesh", "always None: no mesh can be set"),
        (
            "raises",
            "2.2",
            "HybridMesh Mesh ShardingSpec ShardingType XLAPatchedLinear XLAShard XLAShardedTensor "
            "apply_backward_optimization_barrier clear_sharding mark_sharding unwrap_sharded_tensor wrap_as_sharded_tensor "
            "wrap_if_sharded xla_patched_nn_linear_forward",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.3",
            "set_global_mesh",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.4",
            "disable_manual_sharding enable_manual_sharding",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.5",
            "get_1d_mesh",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.7",
            "MarkShardingFunction apply_xla_patch_to_nn_linear",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.8",
            "annotate_custom_sharding mark_sharding_with_gradients shard_as",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "-",
            "auto_policy xla_distribute_module xla_distribute_tensor",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
    ),
    *_module(
        "torch_xla.distributed.xla_backend",
        (
            "works",
            "1.11",
            "ProcessGroupXla",
            "gloo or nccl; importing the module registers backend 'xla' and init method 'xla://'",
        ),
    ),
    *_module(
        "torch_xla.distributed.xla_dist",
        (
            "raises",
            "1.9",
            "DistributedExecutor get_args_parser resolve_and_execute",
            "start the script on each machine with torchrun",
        ),
    ),
    *_module(
        "torch_xla.distributed.xla_multiprocessing",
        ("works", "1.9", "create_optimized_replica_groups", "None: all processes"),
        ("works", "1.9", "MpModelWrapper MpSerialExecutor", ""),
        (
            "works",
            "1.9",
            "spawn",
            "processes, no threads; nprocs may be any number, at most one for each GPU; nprocs=1 runs in this process",
        ),
    ),
    *_module(
        "torch_xla.distributed.xla_spawn",
        ("works", "1.9", "main", "SageMaker builds only: python -m torch_xla.distributed.xla_spawn"),
    ),
    *_module(
        "torch_xla.distributed.zero_redundancy_optimizer",
        (
            "works",
            "2.1",
            "ZeroRedundancyOptimizer",
            "use_grad_acc_hook and save_master_weights raise; sizes of buckets have no effect",
        ),
    ),
    *_module(
        "torch_xla.experimental",
        ("works", "2.4", "is_eager_mode", ""),
        ("works", "2.4", "compile", "gone in 2.7: torch_xla.compile"),
        (
            "no effect",
            "2.4",
            "eager_mode eager_mode_context",
            "noted for is_eager_mode and metrics: steps run eagerly until they are compiled, values are the same",
        ),
    ),
    *_module(
        "torch_xla.experimental.assume_pure",
        (
            "no effect",
            "2.8",
            "assume_pure",
            "gives the function itself: what repeats is compiled without it; add_rng_seed_argument raises",
        ),
        ("raises", "2.8", "PureModule", "use the module itself"),
    ),
    *_module(
        "torch_xla.experimental.callback",
        ("works", "2.5", "on_ready_callback", "computes the value now"),
        ("works", "2.6", "on_ready_event", "computes the value now"),
    ),
    *_module(
        "torch_xla.experimental.custom_kernel",
        ("works", "2.4", "repeat_with_fixed_output_size", ""),
        (
            "raises",
            "2.3",
            "flash_attention jax_import_guard make_kernel_from_pallas",
            "use torch.nn.functional.scaled_dot_product_attention and other PyTorch operators",
        ),
        (
            "raises",
            "2.4",
            "gmm paged_attention tgmm trace_pallas",
            "use torch.nn.functional.scaled_dot_product_attention and other PyTorch operators",
        ),
        (
            "raises",
            "2.6",
            "multi_queries_paged_attention",
            "use torch.nn.functional.scaled_dot_product_attention and other PyTorch operators",
        ),
        (
            "raises",
            "2.7",
            "ragged_paged_attention",
            "use torch.nn.functional.scaled_dot_product_attention and other PyTorch operators",
        ),
        (
            "raises",
            "2.8",
            "quantized_matmul_int8",
            "use torch.nn.functional.scaled_dot_product_attention and other PyTorch operators",
        ),
    ),
    *_module(
        "torch_xla.experimental.deprecation",
        ("works", "2.1", "deprecated register_deprecated", ""),
        ("works", "2.5", "mark_deprecated", ""),
    ),
    *_module(
        "torch_xla.experimental.distributed_checkpoint",
        ("raises", "2.1", "SPMDLoadPlanner SPMDSavePlanner", "use torch.distributed.checkpoint"),
        ("raises", "2.2", "CheckpointManager", "use torch.distributed.checkpoint"),
        ("raises", "2.4", "prime_optimizer", "use torch.distributed.checkpoint"),
    ),
    *_module(
        "torch_xla.experimental.distributed_checkpoint.manager",
        ("raises", "2.2", "CheckpointManager", "use torch.distributed.checkpoint"),
    ),
    *_module(
        "torch_xla.experimental.distributed_checkpoint.planners",
        ("raises", "2.1", "SPMDLoadPlanner SPMDSavePlanner", "use torch.distributed.checkpoint"),
    ),
    *_module(
        "torch_xla.experimental.distributed_checkpoint.util",
        ("raises", "2.4", "prime_optimizer", "use torch.distributed.checkpoint"),
    ),
    *_module(
        "torch_xla.experimental.eager",
        ("works", "2.4", "is_eager_mode", ""),
        ("works", "2.4", "compile", "gone in 2.7: torch_xla.compile"),
        (
            "no effect",
            "2.4",
            "eager_mode eager_mode_context",
            "noted for is_eager_mode and metrics: steps run eagerly until they are compiled, values are the same",
        ),
    ),
    *_module(
        "torch_xla.experimental.fori_loop",
        ("works", "2.3", "while_loop", "a Python loop that reads the condition"),
        ("works", "2.4", "fori_loop", "a Python loop"),
    ),
    *_module(
        "torch_xla.experimental.gradient_accumulation",
        ("works", "2.6", "gradient_accumulation", "a Python loop"),
    ),
    *_module(
        "torch_xla.experimental.gpu",
        ("works", "2.0", "num_local_processes", "torch_xla.runtime.local_process_count"),
    ),
    *_module(
        "torch_xla.experimental.gru",
        ("works", "2.7", "GRU", "torch.nn.GRU"),
    ),
    *_module(
        "torch_xla.experimental.mark_pattern_utils",
        ("raises", "2.3", "StableHLOCompositeBuilder", "use torch.export"),
    ),
    *_module(
        "torch_xla.experimental.pjrt",
        ("deprecated", "1.13", "spawn_threads", "since 2.1: torch_xla.launch"),
        ("deprecated", "1.13", "spawn", "since 2.1: torch_xla.distributed.xla_multiprocessing.spawn"),
        ("deprecated", "2.0", "global_device_attributes", "since 2.1: torch_xla.runtime.global_runtime_device_attributes"),
        ("deprecated", "1.13", "broadcast_master_param rendezvous", "since 2.1: the same name in torch_xla.core.xla_model"),
        (
            "deprecated",
            "1.13",
            "addressable_device_count device_type global_device_count global_ordinal local_device_count local_ordinal "
            "local_process_count set_device_type",
            "since 2.1: the same name in torch_xla.runtime",
        ),
        ("deprecated", "1.13", "using_pjrt", "since 2.5 gone: always true"),
        ("deprecated", "1.13", "requires_pjrt", "since 2.5 gone: the function itself"),
        ("deprecated", "1.13", "xla_device", "since 2.8 gone: torch_xla.device"),
        ("deprecated", "2.0", "process_count process_index world_size", "since 2.1: the same name in torch_xla.runtime"),
        ("deprecated", "2.0", "device_attributes", "since 2.1: torch_xla.runtime.runtime_device_attributes"),
    ),
    *_module(
        "torch_xla.experimental.pjrt_backend",
        (
            "works",
            "-",
            "ProcessGroupXla",
            "torch_xla.distributed.xla_backend; torch_xla's module has no such name and is only imported",
        ),
    ),
    *_module(
        "torch_xla.experimental.plugins",
        ("works", "2.3", "using_dynamic_plugins", "always False"),
        ("raises", "2.3", "DevicePlugin default register_plugin use_dynamic_plugins", "Markstep runs on CPU and CUDA devices"),
    ),
    *_module(
        "torch_xla.experimental.quantized",
        ("raises", "2.3", "matmul_4bit", "use torchao"),
    ),
    *_module(
        "torch_xla.experimental.scan",
        ("works", "2.5", "scan", "a Python loop; partition_fn and is_fn_pure have no effect"),
    ),
    *_module(
        "torch_xla.experimental.scan_layers",
        ("works", "2.6", "scan_layers", "a Python loop; layers that are alike are compiled once"),
    ),
    *_module(
        "torch_xla.experimental.splash_attention",
        ("raises", "2.8", "splash_attention", "use torch.nn.functional.scaled_dot_product_attention"),
    ),
    *_module(
        "torch_xla.experimental.spmd_fully_sharded_data_parallel",
        (
            "raises",
            "2.2",
            "SpmdFullyShardedDataParallel",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
    ),
    *_module(
        "torch_xla.experimental.stablehlo_custom_call",
        ("raises", "2.4", "stablehlo_custom_call", "use torch.library.custom_op"),
        ("raises", "2.6", "place_to_device place_to_host", "use torch.library.custom_op"),
    ),
    *_module(
        "torch_xla.experimental.tpu",
        ("works", "1.13", "num_available_chips num_available_devices", "there are no TPUs: 0"),
        ("works", "1.13", "version", "there are no TPUs: -1"),
        ("raises", "1.13", "get_tpu_env get_worker_ips", "Markstep runs on CPU and CUDA devices"),
    ),
    *_module(
        "torch_xla.experimental.triton",
        ("raises", "2.4", "triton_call", "use torch.library.triton_op"),
    ),
    *_module(
        "torch_xla.experimental.unbounded_dynamism_export",
        (
            "raises",
            "2.4",
            "exported_program_has_symbolic_input_shape process_exported_program_with_symbolic_input",
            "use torch.export",
        ),
    ),
    *_module(
        "torch_xla.experimental.xla_marker",
        ("raises", "2.3", "BoundaryMetadata", "use torch.export"),
    ),
    *_module(
        "torch_xla.experimental.xla_quantized_matmul",
        ("raises", "2.4", "XlaQuantizedLinear", "use torchao"),
    ),
    *_module(
        "torch_xla.experimental.xla_sharded_tensor",
        (
            "raises",
            "1.13",
            "XLAShard XLAShardedTensor",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
    ),
    *_module(
        "torch_xla.experimental.xla_sharding",
        ("works", "2.3", "get_global_mesh", "always None: no mesh can be set"),
        (
            "raises",
            "1.13",
            "XLAShardedTensor mark_sharding",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.0",
            "Mesh clear_sharding",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.1",
            "HybridMesh ShardingSpec ShardingType XLAPatchedLinear XLAShard wrap_if_sharded xla_patched_nn_linear_forward",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.2",
            "apply_backward_optimization_barrier",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.3",
            "set_global_mesh",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "2.4",
            "disable_manual_sharding enable_manual_sharding",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
        (
            "raises",
            "-",
            "MarkShardingFunction annotate_custom_sharding auto_policy get_1d_mesh mark_sharding_with_gradients shard_as "
            "xla_distribute_module xla_distribute_tensor",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
    ),
    *_module(
        "torch_xla.runtime",
        (
            "works",
            "2.1",
            "global_device_count global_ordinal global_runtime_device_count host_index local_device_count local_ordinal "
            "local_process_count process_count process_index world_size",
            "",
        ),
        ("works", "2.2", "get_master_ip is_bf16_supported", ""),
        ("works", "2.1", "device_type", "'CPU' or 'CUDA', or what MARKSTEP_XLA_HARDWARE says"),
        ("works", "2.1", "set_device_type", "CPU or CUDA, before the device is used; others warn"),
        ("works", "2.1", "addressable_device_count addressable_runtime_device_count", "always 1: one device for each process"),
        ("works", "2.1", "is_spmd", "always False"),
        ("works", "2.1", "global_runtime_device_attributes runtime_device_attributes", "name and num_cores"),
        ("works", "2.2", "initialize_cache", "sets MARKSTEP_CACHE_DIR; readonly warns"),
        ("works", "2.7", "get_num_cached_compilation_graph", "compiled by this process"),
        ("deprecated", "2.1", "using_pjrt", "since 2.5 gone: always true"),
        ("deprecated", "2.1", "requires_pjrt", "since 2.5 gone: the function itself"),
        ("deprecated", "2.1", "xla_device", "since 2.8 gone: torch_xla.device"),
        (
            "raises",
            "2.1",
            "use_spmd",
            "start one process for each device and use DistributedDataParallel or torch.distributed.fsdp",
        ),
    ),
    *_module(
        "torch_xla.stablehlo",
        (
            "raises",
            "2.1",
            "StableHLOExportOptions StableHLOGraphModule exported_program_to_stablehlo save_as_stablehlo "
            "save_torch_model_as_stablehlo",
            "use torch.export",
        ),
    ),
    *_module(
        "torch_xla.test.test_utils",
        (
            "works",
            "1.9",
            "close_summary_writer get_summary_writer mp_test now print_test_update print_training_update write_to_summary",
            "",
        ),
    ),
    *_module(
        "torch_xla.tf_saved_model_integration",
        ("raises", "2.1", "make_tf_function save_stablehlo_graph_as_tf save_torch_module_as_tf_saved_model", "use torch.export"),
    ),
    *_module(
        "torch_xla.torch_xla",
        ("works", "2.3", "real_devices", ""),
        ("works", "2.4", "step", ""),
        ("works", "2.3", "device_count", "always 1"),
        ("works", "2.3", "device", "index must be None or 0: one device for each process"),
        ("works", "2.3", "devices", "one for each process"),
        ("works", "2.4", "sync", "wait and reset_scope have no effect: values are there when it returns"),
        ("works", "2.5", "compile", "full_graph raises if a value is read inside; name and max_different_graphs have no effect"),
        ("works", "2.5", "launch", "processes, no threads; under torchrun in this process"),
        ("works", "2.5", "manual_seed", "torch.manual_seed does the same"),
    ),
    *_module(
        "torch_xla.utils.buffer_donor_context",
        ("no effect", "2.7", "alias_with_buffer_donor_config", "programs overwrite what the step overwrites"),
    ),
    *_module(
        "torch_xla.utils.cached_dataset",
        ("works", "1.9", "CachedDataset", "compress has no effect"),
    ),
    *_module(
        "torch_xla.utils.checkpoint",
        ("works", "1.12", "CheckpointFunction", "torch.utils.checkpoint.CheckpointFunction"),
        ("works", "1.12", "checkpoint", "use_reentrant must be True, as in torch_xla"),
    ),
    *_module(
        "torch_xla.utils.checkpoint_tagger",
        ("raises", "1.9", "main", "use torch.save"),
    ),
    *_module(
        "torch_xla.utils.closures",
        ("works", "1.10", "AsyncClosureHandler ClosureHandler", ""),
    ),
    *_module(
        "torch_xla.utils.dlpack",
        ("works", "2.4", "from_dlpack", "no copy"),
        ("works", "2.4", "to_dlpack", "no copy; the capsule is of the real device"),
    ),
    *_module(
        "torch_xla.utils.gcsfs",
        ("raises", "1.9", "list open read remove rmtree stat write", "use the package gcsfs or fsspec"),
    ),
    *_module(
        "torch_xla.utils.keyd_queue",
        ("works", "1.9", "KeydQueue Queue", ""),
    ),
    *_module(
        "torch_xla.utils.serialization",
        ("works", "1.9", "TensorReference save", ""),
        ("works", "1.9", "load", "for files you trust only: unpickling can run code"),
    ),
    *_module(
        "torch_xla.utils.stablehlo_test_utils",
        ("works", "2.4", "has_tf_package", "always False"),
        (
            "raises",
            "2.4",
            "compare_exported_program_and_saved_model_result load_save_model_and_inference wrap_func_as_nn_module",
            "use torch.export",
        ),
    ),
    *_module(
        "torch_xla.utils.tf_record_reader",
        ("raises", "1.9", "TfRecordReader", "use the package tfrecord"),
    ),
    *_module(
        "torch_xla.utils.utils",
        (
            "works",
            "1.9",
            "Cleaner DataWrapper FnDataGenerator LazyProperty SampleGenerator TimedScope TmpFolder as_list eprint "
            "flatten_nested_tuple for_each_instance for_each_instance_rewrite get_free_tcp_ports get_print_fn getenv_as "
            "list_copy_append null_print parallel_work shape timed",
            "",
        ),
        ("works", "2.0", "check_env_flag", ""),
    ),
    *_module(
        "torch_xla.version",
        ("works", "1.9", "__torch_gitrev__ __torch_xla_gitrev__", ""),
        ("works", "1.9", "__version__", "2.9.0, the release whose API this is"),
    ),
)

ENVIRONMENT: tuple[Setting, ...] = (
    Setting("PJRT_DEVICE", "works", "CPU, or CUDA or GPU: what computes. TPU and NEURON: what the machine has. Others raise."),
    Setting("CPU_NUM_DEVICES", "works", "Processes that xmp.spawn and torch_xla.launch start without a GPU; 1 by default."),
    Setting("GPU_NUM_DEVICES", "works", "Processes that xmp.spawn and torch_xla.launch start with GPUs; at most one for each."),
    Setting("WORLD_SIZE", "works", "Number of processes, as torchrun sets it; so are the next three."),
    Setting("RANK", "works", "Ordinal of this process."),
    Setting("LOCAL_RANK", "works", "Ordinal of this process on its machine, and which GPU it computes on."),
    Setting("LOCAL_WORLD_SIZE", "works", "Number of processes on this machine."),
    Setting("XLA_METRICS_FILE", "works", "The metrics report is added to the file at the end of every step."),
    Setting("XLA_USE_EAGER_DEBUG_MODE", "works", "is_eager_mode() is True; nothing else."),
    Setting(
        "XLA_ALWAYS_ALLREDUCE", "works", "xm.all_reduce of a list does its copies with one process, too; values are the same."
    ),
    Setting("XLA_MAX_ASYNC_QUEUE", "works", "Asynchronous step closures that may wait; 100 by default."),
    Setting("ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB", "works", "Gradients are reduced in pieces of this size, last ones first."),
    Setting("PT_XLA_DEBUG", "works", "1: as PT_XLA_DEBUG_LEVEL=2."),
    Setting("PT_XLA_DEBUG_LEVEL", "works", "1 reports new programs, 2 every end of a step, with the line; first process only."),
    Setting("PT_XLA_DEBUG_FILE", "works", "File of these reports; stderr by default."),
    Setting("PT_XLA_DEBUG_MAX_FRAME", "works", "Frames in a report; 8 by default."),
    Setting("DEBUG", "works", "torch_xla.utils.utils.get_print_fn() prints."),
    Setting("MARKSTEP_XLA_HARDWARE", "works", "Markstep's own: what xm.xla_device_hw answers; computes nothing elsewhere."),
    Setting("MARKSTEP_COMPARE_DIR", "works", "Markstep's own: folder of debug.model_comparator.save."),
    Setting("XLA_SYNC_WAIT", "no effect", "Values are there when torch_xla.sync returns."),
    Setting("XLA_EMIT_STEPLOG", "no effect", "Use PT_XLA_DEBUG_LEVEL=2."),
    Setting("XLA_IR_DEBUG", "no effect", "There is no XLA graph; markstep.explain() names the lines of programs."),
    Setting("XLA_HLO_DEBUG", "no effect", "There is no XLA graph; markstep.explain() names the lines of programs."),
    Setting("XLA_SAVE_TENSORS_FILE", "no effect", "There is no XLA graph; so for XLA_SAVE_TENSORS_FMT."),
    Setting("XLA_SAVE_TENSORS_FMT", "no effect", "There is no XLA graph."),
    Setting("XLA_PERSISTENT_CACHE_PATH", "no effect", "Programs are always kept, in MARKSTEP_CACHE_DIR."),
    Setting("XLA_PERSISTENT_CACHE_READ_ONLY", "no effect", "The cache has no read-only mode."),
    Setting("XLA_COMPILATION_CACHE_SIZE", "no effect", "It counts XLA's executables."),
    Setting("XLA_ENABLE_PARAM_ALIASING", "no effect", "Programs overwrite what the step overwrites."),
    Setting(
        "XLA_USE_BF16",
        "no effect",
        "A warning: types are what the script says. Deprecated in torch_xla: use torch_xla.amp.autocast.",
    ),
    Setting(
        "XLA_DOWNCAST_BF16",
        "no effect",
        "A warning: types are what the script says. Deprecated in torch_xla: use torch_xla.amp.autocast.",
    ),
    Setting("XLA_USE_32BIT_LONG", "no effect", "int64 is int64."),
    Setting(
        "XLA_EXPERIMENTAL",
        "no effect",
        "Reading a value fills all live tensors, which is early_sync; nonzero gives exact shapes.",
    ),
    Setting("XLA_USE_SPMD", "no effect", "Not supported: start one process for each device. xr.use_spmd() raises."),
)

SAGEMAKER: tuple[Setting, ...] = (
    Setting(
        "python -m torch_xla.distributed.xla_spawn", "works", "--num_gpus N script.py ...: starts _mp_fn(index) of the script."
    ),
    Setting(
        "python -m torch_xla.distributed.sm_dist", "works", "The same on all hosts of the job, from its resourceconfig.json."
    ),
    Setting("_mp_fn", "works", "Gets the ordinal among all processes. A script without it is an error that says what to add."),
    Setting("GPU_NUM_DEVICES", "works", "Set to 1 if it is not set and the compiler is enabled."),
    Setting("XRT_HOST_ORDINAL", "works", "Number of this host; xmp.spawn starts its processes of all hosts with it."),
    Setting("XRT_SHARD_WORLD_SIZE", "works", "Number of hosts."),
    Setting("XRT_MESH_SERVICE_ADDRESS", "works", "host:port of the first host, where processes meet."),
    Setting("SM_FRAMEWORK_PARAMS", "works", "JSON with the next two keys; read when torch_xla is imported."),
    Setting("sagemaker_training_compiler_enabled", "works", "True: settings are made. False: only the first log line."),
    Setting("sagemaker_training_compiler_debug_mode", "works", "Reports and metrics in SM_OUTPUT_DATA_DIR/compiler."),
    Setting(
        "SM_OUTPUT_DATA_DIR",
        "works",
        "Where they go; the files are XLA_METRICS_FILE.txt (.N for rank N) and PT_XLA_DEBUG_FILE.txt.",
    ),
    Setting("SM_TRAINING_COMPILER_CONFIGURED", "works", "Set to 1 when that is done."),
    Setting("Found configuration for Training Compiler", "works", "Log line, when a key is found."),
    Setting("Configuring SM Training Compiler...", "works", "Log line, when it is enabled."),
    Setting("Training Compiler set to debug mode", "works", "Log line, in debug mode."),
    Setting(
        "sagemaker_pytorch_xla_multi_worker_enabled",
        "no effect",
        "For the launcher of the container, which calls xla_spawn for it.",
    ),
    Setting("XRT_WORKERS", "no effect", "Processes meet at XRT_MESH_SERVICE_ADDRESS; so for other XRT variables."),
)
