"""The rows of the parity table under test in the listings."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

_ROWS: Final[Mapping[int, str]] = MappingProxyType(
    {
        1: "G.test_logging_init",
        2: "G.test_default_store_timeout_gloo",
        4: "G.test_set_gloo_pg_timeout",
        5: "G.test_multi_device_constructor",
        6: "G.test_broadcast_checks",
        7: "G.test_allreduce_checks",
        8: "G.test_allreduce_coalesced_checks",
        9: "G.test_allreduce_coalesced_checks_cuda",
        10: "G.test_sparse_allreduce_checks",
        11: "G.test_allgather_checks",
        12: "G.test_allgather_coalesced_checks",
        13: "G.test_reduce_checks",
        14: "G.test_tensor_dtype_mismatch",
        15: "G.test_all_to_all_single",
        16: "G.test_empty_tensors",
        17: "G.test_broadcast_basics G.test_broadcast_basics_cuda",
        18: "G.test_broadcast_stress G.test_broadcast_stress_cuda",
        19: "T.test_broadcast K.test_broadcast",
        20: "G.test_allreduce_basics G.test_allreduce_basics_cuda T.test_all_reduce_ops",
        21: "T.test_all_reduce K.test_all_reduce",
        22: "G.test_allreduce_stress G.test_allreduce_stress_cuda",
        23: "G.test_allreduce_coalesced_basics G.test_allreduce_coalesced "
        "T.test_all_reduce_coalesced",
        24: "G.test_allreduce_coalesced_stress G.test_allreduce_coalesced_async",
        25: "G.test_sparse_allreduce_basics G.test_sparse_allreduce_basics_cuda "
        "G.test_sparse_allreduce_cuda_dispatched",
        26: "G.test_reduce_basics G.test_reduce_basics_cuda",
        27: "G.test_reduce_stress G.test_reduce_stress_cuda",
        28: "G.test_gather_basics G.test_gather_basics_cuda T.test_gather",
        29: "G.test_gather_noncontiguous_input",
        30: "G.test_gather_stress G.test_gather_stress_cuda",
        31: "G.test_scatter_basics G.test_scatter_basics_cuda T.test_scatter K.test_scatter",
        32: "G.test_scatter_stress G.test_scatter_stress_cuda",
        33: "G.test_allgather_basics G.test_allgather_basics_cuda T.test_allgather "
        "K.test_allgather",
        34: "G.test_allgather_noncontiguous_input",
        35: "G.test_allgather_stress G.test_allgather_stress_cuda",
        36: "G.test_allgather_coalesced_async G.test_allgather_coalesced",
        37: "G.test_allgather_into_tensor_coalesced",
        38: "T.test_reduce_scatter K.test_reduce_scatter",
        39: "G.test_reduce_scatter_tensor",
        40: "G.test_reduce_scatter_tensor_coalesced",
        41: "T.test_all_to_all K.test_alltoall",
        42: "T.test_all_to_all_single_tensor T.test_all_to_all_single_list "
        "T.test_all_to_all_single_none K.test_alltoall_base",
        43: "G.test_collectives",
        44: "G.test_tensor_dtype_complex",
        45: "G.test_bool_tensors",
        46: "G.test_barrier_implies_wait",
        47: "G.test_monitored_barrier",
        48: "G.test_round_robin G.test_round_robin_create_destroy",
        49: "T.TestCollectivesWithWrapper.test_broadcast_object_list "
        "T.TestCollectivesWithBaseClass.test_broadcast_object_list",
        50: "G.test_broadcast_coalesced_gloo_cpu G.test_broadcast_coalesced_gloo_cuda",
        51: "G.test_send_recv_all_to_all K.test_send K.test_recv",
        52: "G.test_allreduce_work_wait_cpu G.test_allreduce_work_wait_gpu "
        "G.test_allgather_work_wait_cpu G.test_allgather_work_wait_gpu "
        "G.test_broadcast_work_wait_cpu G.test_broadcast_work_wait_gpu "
        "G.test_scatter_work_wait_cpu G.test_scatter_work_wait_gpu "
        "G.test_nested_comm_tensor_wrapping G.test_consecutive_comm_work_wait_cpu "
        "G.test_consecutive_comm_work_wait_gpu",
        53: "T.test_subpg",
        54: "T.test_using_pg_from_another_thread",
        55: "G.test_gloo_warn_not_in_group",
        56: "G.test_gloo_rank_membership",
        57: "G.test_new_group_local_sync G.test_new_group_local_sync_sanity_check "
        "G.test_new_group_local_sync_duplicate_pg",
        58: "G.test_sequence_num_set_default_pg_gloo G.test_sequence_num_set_gloo_new_group "
        "G.test_sequence_num_incremented_gloo_default "
        "G.test_sequence_num_incremented_gloo_subgroup",
        59: "F.test_expand_1d_rank_list F.test_expand_2d_rank_list F.test_expand_process_group "
        "F.test_expand_device_mesh F.test_expand_device_mesh_tuple",
        60: "F.test_pg_creation_with_tag",
        61: "F.test_pg_lookup_roundtrip F.test_pg_lookup_with_tag F.test_find_or_create_pg "
        "F.test_find_root_pg",
        62: "F.test_broadcast",
        63: "F.test_all_reduce_eager",
        64: "F.test_all_reduce_coalesced_eager F.TestPgTag.test_all_gather_into_tensor_coalesced "
        "F.TestCollectivesWithNCCL.test_all_gather_into_tensor_coalesced",
        65: "F.TestPgTag.test_all_gather_tensor",
        66: "F.TestPgTag.test_reduce_scatter_tensor F.test_reduce_scatter_into_tensor_coalesced",
        67: "F.TestMetaCollectives.test_all_reduce",
        68: "F.TestGradCollectives.test_all_reduce",
        69: "F.test_all_reduce_tracing",
        70: "F.TestCollectivesWithNCCL.test_all_to_all_single F.test_all_to_all_single_1d_input "
        "F.test_all_to_all_single_split_sizes_none",
        71: "F.test_tracing F.test_tracing_with_fakepg",
        72: "F.test_permute_tensor_with_sub_group",
        73: "F.TestFunctionalAutograd.test_all_to_all_single "
        "F.TestFunctionalAutogradWithNCCL.test_all_to_all_single F.test_all_to_all_single_inductor",
        74: "F.TestFunctionalAutograd.test_all_gather_tensor "
        "F.TestFunctionalAutograd.test_reduce_scatter_tensor",
        75: "T.test_bwd_sees_fwd_pg",
        76: "T.test_collective_error_on_rank_zero T.test_collective_error_on_rank_non_zero "
        "T.test_collective_error_on_rank_non_zero_all",
        77: "T.test_skip",
        78: "T.test_assert_equal_on_rank",
        79: "G.test_gloo_backend_cpu_module G.test_gloo_backend_cpu_module_grad_is_view "
        "G.test_gloo_backend_1gpu_module_device_ids_integer_list "
        "G.test_gloo_backend_1gpu_module_device_ids_torch_device_list "
        "G.test_gloo_backend_2gpu_module G.test_gloo_backend_4gpu_module",
        80: "G.test_global_local_unused_params_grad "
        "G.test_global_local_unused_params_grad_with_grad_is_view "
        "G.test_global_local_unused_params_grad_with_static_graph",
        81: "G.test_find_unused_parameters_when_unused_parameters_empty",
        82: "G.test_ignored_output G.test_ignored_output_with_unused_parameters",
        83: "G.test_ignored_sharded_tensor",
        84: "G.test_sparse_gradients G.test_sparse_gradients_grad_is_view",
        85: "G.test_ddp_comm_hook_future_passing_cpu G.test_ddp_comm_hook_future_passing_gpu_gloo "
        "G.test_ddp_comm_hook_sparse_gradients",
        86: "G.test_ddp_invalid_comm_hook_init G.test_ddp_invalid_comm_hook_return_type "
        "G.test_ddp_comm_hook_register_just_once",
        87: "G.test_single_dtype_single_bucket G.test_multi_dtype_single_bucket "
        "G.test_multi_dtype_multi_bucket",
        88: "G.test_forward_backward G.test_forward_backward_unused_parameters "
        "G.test_forward_backward_optimizer",
        89: "J.test_single_joinable_main_hooks J.test_single_joinable",
        90: "J.test_single_joinable_post_hooks",
        91: "J.test_multiple_joinables",
        92: "J.test_single_joinable_disable J.test_multiple_joinable_disable",
        93: "J.test_single_joinable_throw J.test_multiple_joinables_throw",
        94: "J.test_join_kwargs",
        95: "K.test_all_reduce K.test_allgather K.test_reduce_scatter K.test_broadcast "
        "K.test_scatter K.test_alltoall K.test_alltoall_base K.test_send K.test_recv",
        96: "K.test_construct_fsdp K.test_fsdp_fake_e2e K.test_fsdp_tp_fake_e2e "
        "K.test_fake_pg_tracing",
    }
)
"""By row: listing and test, with the class where a listing has several tests of that name."""


def by_row(tests: Iterable[str]) -> dict[int, list[str]]:
    """Return tests, as `G.Class.test`, by parity row.

    Raises:
        ValueError: a row names a test that is not there, or that several classes have.
    """
    found: dict[str, list[str]] = {}
    for one in tests:
        letter, _, name = one.split(".")
        found.setdefault(one, []).append(one)
        found.setdefault(f"{letter}.{name}", []).append(one)
    rows: dict[int, list[str]] = {}
    for row, named in _ROWS.items():
        for one in named.split():
            if len(found.get(one, ())) != 1:
                raise ValueError(f"P{row} names {one}, which is {found.get(one, 'no test')}")
            rows.setdefault(row, []).extend(found[one])
    return rows
