"""Groups made by ranks during and after calls of the world."""

import time

import numpy as np

import allhands as ah
from allhands.engine.numbering import CallNumbering
from allhands.group.group import Group
from allhands.group.non_member import NonMember
from allhands.parallel.expand import resolve
from programs.protocol import hear, tell, until


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


def settle_before_the_first_call() -> None:
    """Make groups at once, and one of which a rank comes late; look whether they share memory."""
    ah.init_process_group(timeout=30, backend="shm")
    me, size = ah.get_rank(), ah.get_world_size()

    def order_of(group: Group | NonMember | None) -> CallNumbering:
        assert not isinstance(group, NonMember)
        order = (group or ah.default_group()).submitter.engine.order
        assert isinstance(order, CallNumbering)
        return order

    until(lambda: order_of(None).comm is not None)  # and nobody has called anything
    at_once = ah.new_group()
    until(lambda: order_of(at_once).comm is not None)
    if me == 1:
        hear()
    begun = time.monotonic()
    late = ah.new_group()
    seconds = time.monotonic() - begun
    tell("made", seconds=seconds, settled=order_of(late).comm is not None)
    x = np.full(3, me + 1)
    for group in (None, at_once, late):
        ah.all_reduce(x, group=group)
    tell("done", right=bool((x == size * (size + 1) // 2 * size**2).all()))
    ah.destroy_process_group()
