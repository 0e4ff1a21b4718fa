"""Groups made by ranks during and after calls of the world."""

import numpy as np

import allhands as ah
from allhands.parallel.expand import resolve
from programs.protocol import tell


def make_and_use() -> None:
    ah.init_process_group(timeout=30)
    me = ah.get_rank()

    def total(group):
        x = np.full(1000, float(me))
        for _ in range(3):
            x[:] = me
            ah.all_reduce(x, group=group)
        assert (x == x[0]).all()
        return x[0]

    pairs = [(0, 1), (1, 2), (2, 3), (0, 3), (1, 3), (0, 2)]
    mine = [pair for pair in pairs if me in pair]
    mine = mine[me % 3 :] + mine[: me % 3]
    made = {pair: ah.new_group(pair, use_local_synchronization=True) for pair in mine}
    assert all(total(made[pair]) == sum(pair) for pair in pairs if me in pair)
    assert ah.new_group([me, 3 - me], "tag", True) is ah.new_group([3 - me, me], "tag", True)

    mesh = ah.init_device_mesh((2, 2), ("dp", "tp"))
    sums = [total(mesh.get_group(name)) for name in ("dp", "tp")]
    assert sums == [me % 2 * 2 + 2, me // 2 * 4 + 1], sums
    assert total(ah.split_group(me % 2, key=-me)) == 2 + me % 2 * 2
    assert total(resolve([[0, 3], [1, 2]], "", "all_reduce", {})) == 3

    dealt = ah.round_robin([ah.new_group() for _ in range(2)])
    works = [dealt.all_reduce(np.full(5, float(step))) for step in range(50)]
    assert [work.result()[0] for work in works] == [4.0 * step for step in range(50)]
    ah.barrier(dealt)
    tell("done", shared="shared memory" in mesh.get_group("dp").explain())
    ah.destroy_process_group()
