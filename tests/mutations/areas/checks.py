"""Mutations of stores, of store timeouts, and of the checks of arguments."""

from typing import Final

from mutations.mutation import Mutation
from support.parity.rows import TORCH

MUTATIONS: Final = (
    # ------------------------------------------------------------ store, rendezvous, timeouts
    Mutation(
        1,
        "joining configures the root logger",
        "api/joining.py",
        "    return _choose_joiner(resolved.backend, thread_rank).join(resolved)\n",
        "    import logging\n"
        "\n"
        "    logging.getLogger().addHandler(logging.StreamHandler())\n"
        "    return _choose_joiner(resolved.backend, thread_rank).join(resolved)\n",
    ),
    Mutation(
        2,
        "a get waits for 30 s whatever the timeout of its store",
        "stores/coordinator.py",
        "return self._control.get(key, wait=True, timeout=self._timeout)",
        "return self._control.get(key, wait=True, timeout=30.0)",
    ),
    Mutation(
        3,
        "PrefixStore leaves out the prefix",
        "stores/prefix.py",
        "return self._prefix + check_key(key)",
        "return check_key(key)",
    ),
    Mutation(
        4,
        "a timeout that is set is only checked",
        "group/group.py",
        "self.order.timeout = check_timeout(to_seconds(timeout))",
        "check_timeout(to_seconds(timeout))",
    ),
    Mutation(
        5,
        "groups of the same ranks are one group",
        "group/registry.py",
        'return f"{key.base_name}/{self._name_counts[key.base_name]}"',
        'return f"{key.base_name}/1"',
    ),
    # ------------------------------------------------------------ checks
    Mutation(
        6,
        "a root tensor may be one past the end",
        "c10d/checks.py",
        "if not 0 <= index < len(given):",
        "if not 0 <= index <= len(given):",
    ),
    Mutation(
        7,
        "allreduce takes an empty list",
        "c10d/checks.py",
        '    _check_not_empty("allreduce", given, "tensor list")\n    arrays = _check_one_layout(',
        "    arrays = _check_one_layout(",
    ),
    Mutation(
        7,
        "ranks that disagree are named by their ranks in the world",
        "engine/group_events.py",
        "rank = self._ranks.index(peer)",
        "rank = peer",
    ),
    Mutation(
        8,
        "allreduce_coalesced takes several dtypes",
        "c10d/checks.py",
        "        if array.dtype != arrays[0].dtype:",
        "        if False:",
    ),
    Mutation(
        9,
        "tensors of any device are taken",
        "torch/tensors.py",
        "if tensor.device.type not in _DEVICES:",
        "if False:",
        TORCH,
    ),
    Mutation(
        10,
        "sparse arrays are reduced by every operation",
        "c10d/checks.py",
        "if isinstance(arrays[0], SparseArray) and op not in sparse.OPS:",
        "if False:",
    ),
    Mutation(
        11,
        "allgather takes longer lists of outputs",
        "c10d/checks.py",
        "        if len(one) != expected:",
        "        if len(one) < expected:",
    ),
    Mutation(
        12,
        "allgather_coalesced takes more lists than there are ranks",
        "c10d/checks.py",
        "if len(filled) != size:",
        "if len(filled) < size:",
    ),
    Mutation(
        13,
        "reduce takes the first of several arrays",
        "c10d/checks.py",
        'array = _check_single_dense("reduce", given, "tensors", "tensor list")',
        'array = _check_dense("reduce", given, "tensors")[0]',
    ),
    Mutation(
        14,
        "different dtypes are not refused",
        "collectives/arguments.py",
        "    if first.dtype != second.dtype:",
        "    if False:",
    ),
    Mutation(
        15,
        "all_to_all_single copies what is not contiguous",
        "collectives/primitive.py",
        "if not (found.flags.c_contiguous or self._stages_outputs):",
        "if False:",
    ),
)
