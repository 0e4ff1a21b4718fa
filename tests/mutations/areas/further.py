"""Mutations of the last rows: barriers, objects, communication hooks, meshes, options."""

from typing import Final

from mutations.mutation import Mutation
from support.parity.rows import TORCH

MUTATIONS: Final = (
    # ------------------------------------------------------------ the rest
    Mutation(
        97,
        "the text does not say in what it timed out",
        "stores/barrier.py",
        'f"Timed out initializing process group in store based barrier on rank: {rank}, "',
        'f"it took too long on rank: {rank}, "',
    ),
    Mutation(
        98,
        "the backend is not registered",
        "torch/backend.py",
        "if NAME.upper() not in dist.Backend._plugins:",
        "if NAME.upper() in dist.Backend._plugins:",
        TORCH,
    ),
    Mutation(
        99,
        "a bucket is full one array later",
        "parallel/bucket_layout.py",
        "if bucket.nbytes >= limits[bucket.limit]:",
        "if bucket.nbytes > limits[bucket.limit]:",
    ),
    Mutation(
        100,
        "equal factors of PREMUL_SUM are different operations",
        "collectives/reduction/op.py",
        "return isinstance(other, ReduceOp) and self._value_ == other._value_",
        "return self is other",
    ),
    Mutation(
        101,
        "the local rank that srun sets is not known",
        "api/node.py",
        '    "SLURM_LOCALID",\n',
        "",
    ),
    Mutation(
        102,
        "a message to oneself is begun",
        "group/group.py",
        "        if rank == self.rank:\n            raise ValueError(",
        "        if False:\n            raise ValueError(",
    ),
    Mutation(
        102,
        "dst is taken for a place in the group",
        "api/calls.py",
        '        return to_group_rank(group, dst, "dst")\n    if group_dst',
        "        return dst\n    if group_dst",
    ),
    Mutation(
        103,
        "a group that was destroyed goes on",
        "membership/worker_groups.py",
        "engine.replace_failure(failure) if failure is not None else engine.shut_down(\n"
        "                _make_destroyed_error\n"
        "            )\n",
        "engine.replace_failure(failure) if failure is not None else None\n",
    ),
    Mutation(
        104,
        "PowerSGD averages one of its factors alone",
        "parallel/hooks/power_sgd.py",
        "calls.all_reduce(second, ReduceOp.AVG).wait()",
        "pass",
    ),
    Mutation(
        105,
        "groups that the asyncio face makes have the timeout of the world",
        "aio/world.py",
        "options = NewGroupOptions(timeout, on_failure, retryable, verify, "
        "allow_pickle)\n"
        "        group = await",
        "options = NewGroupOptions(None, on_failure, retryable, verify, allow_pickle)\n"
        "        group = await",
    ),
    Mutation(
        106,
        "the rank in a group is that in the world",
        "api/world_queries.py",
        "return -1 if isinstance(group, NonMember) else (group or require_world().group).rank",
        "return -1 if isinstance(group, NonMember) else require_world().group.rank",
    ),
    Mutation(
        107,
        "calls are recorded without their labels",
        "engine/group_recorder.py",
        "return self._ring.add(operation, sequence, nbytes, call, label)",
        "return self._ring.add(operation, sequence, nbytes, call, None)",
    ),
    Mutation(
        108,
        "a message over memory comes from the place that has the rank's number",
        "native/python/p2p_object.c",
        "        if (self->ranks[place] == rank)",
        "        if (place == rank)",
    ),
    Mutation(
        108,
        "a batch receives from whoever sends",
        "api/p2p.py",
        "return found.recv(x, resolve_src(found, src, group_src), tag, **options)",
        "return found.recv(x, None, tag, **options)",
    ),
    Mutation(
        109,
        "the root of gather_object is taken for a place in the group",
        "api/objects.py",
        '        root = resolve_root(found, dst, group_dst, "dst")\n        if root == found.rank:',
        "        root = dst or 0\n        if root == found.rank:",
    ),
    Mutation(
        109,
        "who sent objects is told by its place",
        "api/objects.py",
        "    return found.ranks[sender]\n",
        "    return sender\n",
    ),
    Mutation(
        110,
        "the average of complex numbers leaves their imaginary parts",
        "collectives/reduction/folds.py",
        "np.true_divide(array, world_size, out=array)",
        "np.true_divide(array.real, world_size, out=array.real)",
    ),
    Mutation(
        111,
        "who sent is told by its place in the group",
        "api/p2p.py",
        "return found.ranks[work.source_rank()]",
        "return work.source_rank()",
    ),
    Mutation(
        111,
        "who sent over memory is told by its place in the group",
        "native/python/p2p_object.c",
        "return PyLong_FromLong(self->ranks[message.source]);",
        "return PyLong_FromLong(message.source);",
    ),
    Mutation(
        111,
        "who does not send is named by its rank in the world",
        "engine/p2p/message.py",
        'f"rank {ranks.index(peer)}"',
        'f"rank {peer}"',
    ),
    Mutation(
        111,
        "who does not send over memory is named by its place in the group",
        "engine/p2p/over_shm.py",
        "peer = None if failure.peer < 0 else self._ranks[failure.peer]",
        "peer = None if failure.peer < 0 else failure.peer",
    ),
    Mutation(
        112,
        "the key of a split does not count",
        "api/groups.py",
        "places.sort(key=lambda place: (int(everybody[place, 1]), place))",
        "places.sort()",
    ),
    Mutation(
        113,
        "the local rank is that along the first dimension",
        "parallel/mesh.py",
        "return self._require_coordinate()[self._resolve_only_dim(mesh_dim)]",
        "return self._require_coordinate()[0 * self._resolve_only_dim(mesh_dim)]",
    ),
    Mutation(
        114,
        "a work that failed is a success",
        "engine/work/work.py",
        "return self._future.done() and self.exception() is None",
        "return self._future.done()",
    ),
    Mutation(
        115,
        "compare_set sets whatever is there",
        "stores/hash.py",
        'if self._contents.values.get(key, b"") == encode(expected):',
        "if True:",
    ),
    Mutation(
        116,
        "a process that has left a world cannot join another",
        "api/default_world.py",
        "                _default_world = None\n                default.group = _NO_GROUP",
        "                default.group = _NO_GROUP",
    ),
    Mutation(
        117,
        "float16 hooks send float32",
        "parallel/hooks/elementary.py",
        "return _average_in_dtype(group, bucket, np.dtype(np.float16))",
        "return _average_in_dtype(group, bucket, np.dtype(np.float32))",
    ),
    Mutation(
        118,
        "all_reduce of tensors takes the largest",
        "torch/options.py",
        "dist.ReduceOp.SUM.value: ReduceOp.SUM",
        "dist.ReduceOp.SUM.value: ReduceOp.MAX",
        TORCH,
    ),
    Mutation(
        119,
        "RANK is not looked at",
        "config.py",
        '    ("RANK", "WORLD_SIZE"),\n',
        "",
    ),
)
