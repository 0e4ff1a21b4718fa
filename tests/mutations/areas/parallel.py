"""Mutations of the reducer, Join, and fake worlds."""

from typing import Final

from mutations.mutation import Mutation
from support.parity.rows import TORCH

MUTATIONS: Final = (
    # ------------------------------------------------------------ reducer
    Mutation(
        79,
        "gradients are added up, not averaged",
        "parallel/hooks/elementary.py",
        "work = BucketCollectives(group, bucket).all_reduce(buffer, ReduceOp.AVG)",
        "work = BucketCollectives(group, bucket).all_reduce(buffer, ReduceOp.SUM)",
    ),
    Mutation(
        80,
        "parameters that no rank has used count as used",
        "parallel/reducer.py",
        "            used[step.order] = 1\n",
        "            used[:] = 1\n",
    ),
    Mutation(
        81,
        "what this rank does not use keeps its gradient, whoever uses it",
        "parallel/reducer.py",
        "nowhere = {place for place in places if not used[place]}",
        "nowhere = set(step.unused)",
    ),
    Mutation(
        82,
        "the average of what no rank has used is zeros",
        "parallel/reducer.py",
        "if is_own and place not in nowhere:",
        "if is_own:",
    ),
    Mutation(
        83,
        "parameters that are to be ignored are averaged",
        "parallel/parameters.py",
        "self.indices = [one for one in range(len(self.arrays)) if one not in ignored]",
        "self.indices = list(range(len(self.arrays)))",
    ),
    Mutation(
        84,
        "a sparse gradient stays as it was",
        "parallel/bucket.py",
        "        out.become(self._buffer.indices, self._buffer.values)\n",
        "",
    ),
    Mutation(
        85,
        "what the future of a hook gives is not taken",
        "parallel/bucket.py",
        "self._store_average(comm_hook.check_average(given, self.buffer))",
        "comm_hook.check_average(given, self.buffer)",
    ),
    Mutation(
        86,
        "a hook that cannot be called is registered",
        "parallel/comm_hook.py",
        "    if not callable(hook):\n        raise TypeError(",
        "    if not callable(hook):\n        return None and TypeError(",
    ),
    Mutation(
        87,
        "a bucket may hold several dtypes",
        "parallel/bucket_layout.py",
        "    if len(dtypes) != 1:",
        "    if not dtypes:",
    ),
    Mutation(
        88,
        "a forward pass may begin before the step before it is over",
        "parallel/reducer.py",
        "        if self._step is not None:\n            raise RuntimeError(\n"
        '                "Expected to have finished',
        "        if False:\n            raise RuntimeError(\n"
        '                "Expected to have finished',
    ),
    # ------------------------------------------------------------ Join
    Mutation(
        89,
        "main hooks run twice",
        "parallel/join.py",
        "                hook.main_hook()\n",
        "                hook.main_hook()\n                hook.main_hook()\n",
    ),
    Mutation(
        90,
        "every rank believes that it joins last",
        "parallel/join.py",
        "hook.post_hook(shadowed == 0)",
        "hook.post_hook(True)",
    ),
    Mutation(
        91,
        "each of several joinables tells of an iteration",
        "parallel/join.py",
        "one._join_options = _JoinOptions(at == 0, self._throws)",
        "one._join_options = _JoinOptions(True, self._throws)",
    ),
    Mutation(
        92,
        "a Join that is disabled runs its hooks",
        "parallel/join.py",
        "if not self._enable or kind is not None:",
        "if kind is not None:",
    ),
    Mutation(
        93,
        "the text does not say who has no inputs left",
        "parallel/join.py",
        'f"Rank {world_queries.get_rank(self._group)} exhausted all inputs."',
        '"a rank exhausted all inputs"',
    ),
    Mutation(
        94,
        "named arguments do not reach the hooks",
        "parallel/join.py",
        "one.join_hook(**kwargs)",
        "one.join_hook()",
    ),
    # ------------------------------------------------------------ fake worlds
    Mutation(
        95,
        "what is gathered in a fake world is zeros",
        "membership/fake/engine.py",
        "target[...] = np.resize(source, target.size)",
        "target[...] = 0",
    ),
    Mutation(
        96,
        "a FakeStore of PyTorch's makes a real world",
        "torch/rendezvous/fake.py",
        "if not (is_marked or _is_fake(store)):",
        "if not is_marked:",
        TORCH,
    ),
)
