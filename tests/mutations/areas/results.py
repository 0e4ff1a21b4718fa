"""Mutations of the results of collectives and messages."""

from typing import Final

from mutations.mutation import Mutation
from support.parity.rows import TORCH

MUTATIONS: Final = (
    # ------------------------------------------------------------ results
    Mutation(
        16,
        "broadcast refuses arrays without elements",
        "c10d/checks.py",
        '    arrays = _check_dense("broadcast", given, "tensors")\n',
        '    arrays = _check_dense("broadcast", given, "tensors")\n'
        "    if not arrays[0].size:\n"
        '        refuse("broadcast", "there is nothing to send")\n',
    ),
    Mutation(
        17,
        "the root gives its first array, not that at rootTensor",
        "c10d/multi_tensor.py",
        "whole = views[root_tensor].copy()",
        "whole = views[0].copy()",
    ),
    Mutation(
        18,
        "calls that wait go out the last first",
        "engine/queue.py",
        "operation = self._queue.popleft()",
        "operation = self._queue.pop()",
    ),
    Mutation(
        19,
        "src is taken for a place in the group",
        "api/calls.py",
        '            f"whose ranks are {list(group.ranks)}"\n        )\n'
        "    return group.ranks.index(rank)",
        '            f"whose ranks are {list(group.ranks)}"\n        )\n    return rank',
    ),
    Mutation(
        19,
        "src is taken for a place in the group on the short way",
        "api/calls.py",
        "return group.ranks.index(rank) if isinstance",
        "return rank if isinstance",
    ),
    Mutation(
        20,
        "several arrays of a rank are added up whatever the operation",
        "c10d/multi_tensor.py",
        "fold(_choose_local_op(op, whole.dtype), views, whole, len(views))",
        "fold(ReduceOp.SUM, views, whole, len(views))",
    ),
    Mutation(
        21,
        "all_reduce takes the largest by default",
        "api/collectives.py",
        "def all_reduce(\n    x: AnyArray | SparseArray,\n    op: ReduceOp | str = ReduceOp.SUM,",
        "def all_reduce(\n    x: AnyArray | SparseArray,\n    op: ReduceOp | str = ReduceOp.MAX,",
    ),
    Mutation(
        22,
        "a call overtakes those that wait",
        "engine/queue.py",
        "self._queue.append(operation)",
        "self._queue.appendleft(operation)",
    ),
    Mutation(
        23,
        "all_reduce_coalesced gives arrays the results of others",
        "collectives/coalesced.py",
        "            _unpack(whole, [arrays[at] for at in group])\n"
        "        return result\n"
        "\n"
        '    call = _make_signature("all_reduce_coalesced"',
        "            _unpack(whole, [arrays[at] for at in group[::-1]])\n"
        "        return result\n"
        "\n"
        '    call = _make_signature("all_reduce_coalesced"',
    ),
    Mutation(
        24,
        "wait_all gives the values in another order",
        "futures.py",
        "    return [future.result() for future in futures]",
        "    return [future.result() for future in reversed(futures)]",
    ),
    Mutation(
        25,
        "only the first of several sparse arrays holds the result",
        "c10d/multi_tensor.py",
        "mine.indices.copy(), values.copy()) for array in arrays]",
        "mine.indices.copy(), values.copy()) for array in arrays[:1]]",
    ),
    Mutation(
        26,
        "reduce goes to rank 0",
        "collectives/primitive.py",
        "plan.reduce(rank, size, array, target, root, ordered),",
        "plan.reduce(rank, size, array, target, 0, ordered),",
    ),
    Mutation(
        27,
        "reduce to the last rank goes to the one before it",
        "collectives/primitive.py",
        "plan.reduce(rank, size, array, target, root, ordered),",
        "plan.reduce(rank, size, array, target, min(root, size - 2), ordered),",
    ),
    Mutation(
        28,
        "gather fills the list from its end",
        "collectives/primitive.py",
        "plan.gather(rank, size, source, targets, root),",
        "plan.gather(rank, size, source, targets[::-1], root),",
    ),
    Mutation(
        29,
        "strides of what is sent are ignored",
        "collectives/arguments.py",
        "    flat: Array = np.ascontiguousarray(found).reshape(-1)",
        "    flat: Array = (found if found.base is None else found.base).reshape(-1)[: found.size]",
    ),
    Mutation(
        30,
        "gather to rank 0 goes to rank 1",
        "collectives/primitive.py",
        "plan.gather(rank, size, source, targets, root),",
        "plan.gather(rank, size, source, targets, max(root, 1)),",
    ),
    Mutation(
        31,
        "scatter gives out the list from its end",
        "collectives/primitive.py",
        "plan.scatter(rank, size, sources, target, root),",
        "plan.scatter(rank, size, sources[::-1], target, root),",
    ),
    Mutation(
        32,
        "scatter from rank 0 comes from rank 1",
        "collectives/primitive.py",
        "plan.scatter(rank, size, sources, target, root),",
        "plan.scatter(rank, size, sources, target, max(root, 1)),",
    ),
    Mutation(
        33,
        "allgather of several arrays begins with the second",
        "c10d/multi_tensor.py",
        "output[...] = whole[at % len(whole)]",
        "output[...] = whole[(at + 1) % len(whole)]",
    ),
    Mutation(
        34,
        "strides of what is sent are ignored",
        "collectives/arguments.py",
        "    flat: Array = np.ascontiguousarray(found).reshape(-1)",
        "    flat: Array = (found if found.base is None else found.base).reshape(-1)[: found.size]",
    ),
    Mutation(
        35,
        "allgather puts each rank's array in the place before",
        "collectives/primitive.py",
        "plan.all_gather(rank, size, source, targets, self._link_cost),",
        "plan.all_gather(rank, size, source, [*targets[1:], targets[0]], self._link_cost),",
    ),
    Mutation(
        36,
        "all_gather_coalesced deals its outputs by rank, not by array",
        "collectives/composite.py",
        "outputs = [flat[at :: len(sources)] for at in range(len(sources))]",
        "outputs = [flat[at * self.size :][: self.size] for at in range(len(sources))]",
    ),
    Mutation(
        37,
        "all_gather_into_tensor_coalesced fills its outputs from the end",
        "collectives/composite.py",
        "blocks = [list(target.reshape(self.size, -1)) for target in targets]",
        "blocks = [list(target.reshape(self.size, -1))[::-1] for target in targets]",
    ),
    Mutation(
        38,
        "reduce_scatter gives each rank the share of another",
        "collectives/primitive.py",
        '        self._check_blocks(sources, "inputs", target, "output")\n',
        '        self._check_blocks(sources, "inputs", target, "output")\n'
        "        sources.reverse()\n",
    ),
    Mutation(
        39,
        "reduce_scatter_tensor gives each rank the share of another",
        "collectives/primitive.py",
        "(at + 1) * target.size] for at in range(self.size)]",
        "(at + 1) * target.size] for at in reversed(range(self.size))]",
    ),
    Mutation(
        40,
        "reduce_scatter_tensor_coalesced orders shares by array, not by rank",
        "collectives/coalesced.py",
        "[inputs[at][rank] for rank in range(builder.size) for at in group]",
        "[inputs[at][rank] for at in group for rank in range(builder.size)]",
    ),
    Mutation(
        41,
        "all_to_all gives each rank the array of another",
        "collectives/primitive.py",
        '"all_to_all", outputs, sources, targets,',
        '"all_to_all", outputs, sources[::-1], targets,',
    ),
    Mutation(
        42,
        "all_to_all_single takes equal shares whatever is said",
        "collectives/primitive.py",
        'count_elements(rows, output_split_sizes, "output_split_sizes", self.size)',
        'count_elements(rows, None, "output_split_sizes", self.size)',
    ),
    Mutation(
        43,
        "all_to_all of one rank does nothing",
        "api/collectives.py",
        "        return wait_or_return(\n            found.all_to_all(",
        "        if found.size == 1:\n            return None\n"
        "        return wait_or_return(\n            found.all_to_all(",
    ),
    Mutation(
        44,
        "real buffers are not taken for complex numbers",
        "collectives/arguments.py",
        "return [array.view(dtype) for array, dtype in zip(arrays, real, strict=True)]",
        "return list(arrays)",
    ),
    Mutation(
        45,
        "booleans cannot be added up",
        "collectives/reduction/checks.py",
        'if op is ReduceOp.AVG and kind == "bool":',
        'if kind == "bool":',
    ),
    Mutation(
        46,
        "a barrier overtakes the calls before it",
        "engine/queue.py",
        "        self._queue.append(operation)\n",
        '        if operation.request.kind == "barrier":\n'
        "            self._queue.appendleft(operation)\n"
        "        else:\n            self._queue.append(operation)\n",
    ),
    Mutation(
        47,
        "monitored_barrier names all that are missing, asked or not",
        "engine/failures/tracker.py",
        "found.ranks if names_all else found.ranks[:1],",
        "found.ranks,",
    ),
    Mutation(
        48,
        "all calls of a round robin go to its first group",
        "group/round_robin.py",
        "self._submitter_cycle = itertools.cycle(self._parts)",
        "self._submitter_cycle = itertools.cycle(self._parts[:1])",
    ),
    Mutation(
        49,
        "objects are sent in another order",
        "collectives/composite.py",
        "parts = self.objects.encode_parts(values) if self.rank == root else None",
        "parts = self.objects.encode_parts(values[::-1]) if self.rank == root else None",
    ),
    Mutation(
        50,
        "broadcast_coalesced sends what rank 0 has",
        "collectives/coalesced.py",
        "yield builder.broadcast(packed[-1], root)",
        "yield builder.broadcast(packed[-1], 0)",
    ),
    Mutation(
        51,
        "a receive over links takes what has no tag",
        "engine/p2p/over_links.py",
        "self._mesh.post_p2p(request.peer, self._group, request.tag, incoming)",
        "self._mesh.post_p2p(request.peer, self._group, 0, incoming)",
    ),
    Mutation(
        51,
        "a message over memory goes to the place that has the rank's number",
        "engine/p2p/over_shm.py",
        "peer = -1 if request.peer is None else self._ranks.index(request.peer)",
        "peer = -1 if request.peer is None else request.peer",
    ),
    Mutation(
        51,
        "a message goes to the rank that has the place's number",
        "group/group.py",
        "        return self.submitter.engine.ranks[rank]",
        "        return rank",
    ),
    Mutation(
        51,
        "a small message goes to the place that has the rank's number",
        "group/messages.py",
        "place = self.engine.ranks.index(peer)",
        "place = peer",
    ),
    Mutation(
        51,
        "who sent over links is told by its rank in the world",
        "engine/p2p/over_links.py",
        "            sender = self._ranks.index(incoming.peer)",
        "            sender = incoming.peer",
    ),
    Mutation(
        52,
        "roots and operations of traced calls are lost",
        "torch/compile/dispatch.py",
        "            setattr(options, option, arguments[name])\n",
        "            pass\n",
        TORCH,
    ),
)
