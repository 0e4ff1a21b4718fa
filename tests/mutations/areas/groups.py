"""Mutations of groups, functional calls, and threads as ranks."""

from typing import Final

from mutations.mutation import Mutation
from support.parity.rows import TORCH

MUTATIONS: Final = (
    # ------------------------------------------------------------ groups
    Mutation(
        53,
        "a group is of the first ranks of its parent",
        "api/world.py",
        "members = [parent.members[place] for place in group_ranks]",
        "members = list(parent.members[: len(group_ranks)])",
    ),
    Mutation(
        54,
        "who calls on a group has to be a rank itself",
        "api/calls.py",
        "    found = group or require_world().group\n"
        "    if found.coalescer is not None and (instead",
        "    found = require_world() and (group or require_world().group)\n"
        "    if found.coalescer is not None and (instead",
    ),
    Mutation(
        55,
        "the warning does not say what was called",
        "api/calls.py",
        'f"{operation} does nothing here: this rank does not belong to group {group.name!r}"',
        'f"this rank does not belong to group {group.name!r}"',
    ),
    Mutation(
        56,
        "places in a group are those of its ranks in ascending order",
        "api/group_queries.py",
        "return ranks.index(global_rank)",
        "return sorted(ranks).index(global_rank)",
    ),
    Mutation(
        56,
        "the rank in the world is taken for the place",
        "api/group_queries.py",
        "return ranks[group_rank]",
        "return group_rank",
    ),
    Mutation(
        57,
        "local synchronization keeps the order given",
        "api/world.py",
        "            wanted.sort()\n",
        "            pass\n",
    ),
    Mutation(
        58,
        "a call counts twice",
        "group/group.py",
        "        return self.order.latest_sequence\n",
        "        return 2 * self.order.latest_sequence\n",
    ),
    Mutation(
        59,
        "groups of several sizes are taken",
        "parallel/expand.py",
        "if len(sizes) != 1:",
        "if not sizes:",
    ),
    Mutation(
        60,
        "a tag makes a new group each time",
        "api/world.py",
        "            if lineage.tag and (known := self.registry.find_by_key(lineage)) "
        "is not None:\n"
        "                return known\n",
        "",
    ),
    Mutation(
        61,
        "the world is not found by its ranks",
        "api/group_queries.py",
        "return world.group if wanted == world.group.ranks else None",
        "return None",
    ),
    # ------------------------------------------------------------ functional
    Mutation(
        62,
        "the functional broadcast sends what the first rank has",
        "functional.py",
        ".broadcast(out, src, **options)",
        ".broadcast(out, 0, **options)",
    ),
    Mutation(
        63,
        "the functional all_reduce adds up whatever the operation",
        "functional.py",
        "collectives.all_reduce(out, parse_op(op), found, async_op, **options)",
        'collectives.all_reduce(out, parse_op("sum"), found, async_op, **options)',
    ),
    Mutation(
        64,
        "the coalesced functional all_gather gives rows from the last rank on",
        "parallel/coalesced.py",
        "rows[:, start:stop].reshape(found.size * length, *rest)",
        "rows[::-1, start:stop].reshape(found.size * length, *rest)",
    ),
    Mutation(
        65,
        "the functional all_gather joins along dimension 0",
        "parallel/dims.py",
        "np.moveaxis(rows, 0, dim).reshape(shape)",
        "rows.reshape(shape)",
    ),
    Mutation(
        66,
        "the functional reduce_scatter cuts dimension 0",
        "parallel/dims.py",
        "np.ascontiguousarray(np.moveaxis(array.reshape(shape), at, 0))",
        "np.ascontiguousarray(array.reshape(size, *shape[:at], *shape[at + 1 :]))",
    ),
    Mutation(
        67,
        "kernels take calls of which only the shapes are wanted",
        "torch/compile/kernels.py",
        "if not keys.has(torch._C.DispatchKey.Meta):",
        "if keys is not None:",
        TORCH,
    ),
    Mutation(
        68,
        "all_reduce of tensors takes the largest",
        "torch/options.py",
        "dist.ReduceOp.SUM.value: ReduceOp.SUM",
        "dist.ReduceOp.SUM.value: ReduceOp.MAX",
        TORCH,
    ),
    Mutation(
        69,
        "what a traced graph reduces is only read",
        "c10d/collectives.py",
        'views = self.adapter.open_views("allreduce")\n        given = views.view_inouts(buffers)',
        'views = self.adapter.open_views("allreduce")\n'
        "        given = [one.copy() for one in views.view_inouts(buffers)]",
        TORCH,
    ),
    Mutation(
        70,
        "the functional all_to_all_single takes equal shares whatever is said",
        "parallel/tensor_calls.py",
        "sizes = output_split_sizes, input_split_sizes",
        "sizes = None, None",
    ),
    Mutation(
        71,
        "what is reduced is only read",
        "c10d/collectives.py",
        'views = self.adapter.open_views("allreduce")\n        given = views.view_inouts(buffers)',
        'views = self.adapter.open_views("allreduce")\n'
        "        given = [one.copy() for one in views.view_inouts(buffers)]",
        TORCH,
    ),
    Mutation(
        72,
        "permute_tensor permutes the other way round",
        "parallel/tensor_calls.py",
        "outgoing[goals[found.rank]] = incoming[goals.index(found.rank)] = given.size",
        "outgoing[goals.index(found.rank)] = incoming[goals[found.rank]] = given.size",
    ),
    Mutation(
        73,
        "all_to_all_single sends what it was not given",
        "c10d/collectives.py",
        "views.view_input(x)\n        recv, send =",
        "views.view_input(-x)\n        recv, send =",
        TORCH,
    ),
    Mutation(
        74,
        "all_gather_into_tensor sends what it was not given",
        "c10d/collectives.py",
        "            views.view_outputs(outputs),\n            views.view_inputs(inputs),\n",
        "            views.view_outputs(outputs),\n"
        "            views.view_inputs([-one for one in inputs]),\n",
        TORCH,
    ),
    Mutation(
        75,
        "all_reduce of tensors adds up what no rank gave",
        "c10d/collectives.py",
        'views = self.adapter.open_views("allreduce")\n        given = views.view_inouts(buffers)',
        'views = self.adapter.open_views("allreduce")\n'
        "        given = [-one for one in views.view_inouts(buffers)]",
        TORCH,
    ),
    # ------------------------------------------------------------ threads as ranks
    Mutation(
        76,
        "what a rank raises is forgotten",
        "testing/threads.py",
        "            self._errors.setdefault(rank, error)\n",
        "",
    ),
    Mutation(
        77,
        "a skip is a failure",
        "testing/rank_errors.py",
        "    if isinstance(error, unittest.SkipTest):\n        return True\n",
        "    return False\n",
    ),
    Mutation(
        78,
        "what a rank finds is not told to the others",
        "testing/compare.py",
        "collectives.broadcast(text, src=rank, group=group)",
        "text = np.zeros(0, np.uint8)",
    ),
)
