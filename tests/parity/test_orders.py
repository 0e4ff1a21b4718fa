"""Rows in groups with places unlike world ranks, on every route.

The plain calls name ranks as the world does, groups and process groups by their places: whoever
takes one for the other has the wrong root, or the wrong blocks.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import allhands as ah
from allhands.testing import on_threads
from support.arrays.collective_cases import REDUCING, Case, case

WAYS = ("threads", "shm", "links")

Array = npt.NDArray[Any]
SIZE = 4
ORDERS = ([2, 0], [3, 1, 2, 0], [1, 3, 0])
LENGTHS = (1, 300, 40_000)
"""Elements of each block: sent at once, within a slot, and cut."""
_ROOT_AT = {"broadcast": 1, "reduce": 1, "gather": 2, "scatter": 2}
_SHORT = 0.3
"""Seconds for what waits in vain."""


def groups(rank: int) -> Iterator[tuple[ah.Group, list[int]]]:
    """Make a group of each order; yield this rank's groups, with group ranks."""
    for ranks in ORDERS:
        group = ah.new_group(ranks)
        if isinstance(group, ah.Group):
            assert group.rank == ranks.index(rank)
            yield group, ranks


def right(made: Case) -> None:
    assert made.wrong() == ""


@on_threads(SIZE)
def test_p106_a_rank_has_its_place_in_a_group_in_any_order(rank: int) -> None:
    for group, ranks in groups(rank):
        assert (ah.get_rank(group), ah.get_world_size(group)) == (ranks.index(rank), len(ranks))
        assert ah.process_group(group).rank() == ranks.index(rank)
        assert ah.get_rank() == rank


# ---------------------------------------------------------------- rooted calls


Form = Callable[[Case, ah.Group, int], None]


def rooted(name: str, rank: int, *forms: Form) -> None:
    """Make a call of every root, with the root given in `forms`; by default in every form."""
    for group, ranks in groups(rank):
        for root in range(len(ranks)):
            for length in LENGTHS:
                for form in forms or (plainly, later, by_place, as_c10d):
                    made = case(name, group.rank, group.size, length, root=root)
                    form(made, group, ranks[root])
                    right(made)


def plainly(made: Case, group: ah.Group, root: int) -> None:
    getattr(ah, made.name)(*_rooted(made, root), group=group)


def later(made: Case, group: ah.Group, root: int) -> None:
    work = getattr(ah, made.name)(*_rooted(made, root), group=group, async_op=True)
    assert work.wait(20)


def by_place(made: Case, group: ah.Group, root: int) -> None:
    assert made.run(group).wait(20)


def as_c10d(made: Case, group: ah.Group, root: int) -> None:
    pg, place = ah.process_group(group), group.ranks.index(root)
    x, *rest = made.arguments
    match made.name:
        case "broadcast":
            work = pg.broadcast([x], root=place)
        case "reduce":
            work = pg.reduce([x], root=place)
        case "gather":
            work = pg.gather([rest[0]] if rest[0] else [], [x], root=place)
        case _:
            work = pg.scatter([x], [rest[0]] if rest[0] else [], root=place)
    assert work.wait(20)


def _rooted(made: Case, root: int) -> list[Any]:
    given = list(made.arguments)
    given[_ROOT_AT[made.name]] = root
    return given


@on_threads(SIZE)
def test_p017_broadcast_of_each_root_of_a_group_in_any_order(rank: int) -> None:
    rooted("broadcast", rank, by_place, as_c10d)


@on_threads(SIZE)
def test_p019_broadcast_in_place_from_each_root_of_a_group_in_any_order(rank: int) -> None:
    rooted("broadcast", rank, plainly, later)


@on_threads(SIZE)
def test_p026_reduce_to_each_root_of_a_group_in_any_order(rank: int) -> None:
    rooted("reduce", rank)


@on_threads(SIZE)
def test_p028_gather_to_each_root_of_a_group_in_any_order(rank: int) -> None:
    rooted("gather", rank)


@on_threads(SIZE)
def test_p031_scatter_from_each_root_of_a_group_in_any_order(rank: int) -> None:
    rooted("scatter", rank)


@on_threads(SIZE)
def test_p049_objects_of_each_root_of_a_group_in_any_order(rank: int) -> None:
    for group, ranks in groups(rank):
        for root in ranks:
            items: list[Any] = [rank, "of", {"rank": rank}]
            ah.broadcast_object_list(items, root, group)
            assert items == [root, "of", {"rank": root}]


@on_threads(SIZE)
def test_p050_broadcast_coalesced_of_each_root_of_a_group_in_any_order(rank: int) -> None:
    for group, ranks in groups(rank):
        for root in ranks:
            arrays = [np.full(40, rank, np.float32), np.full(3, rank), np.full(90, rank * 1.0)]
            ah.broadcast_coalesced(arrays, root, buffer_size=256, group=group)
            assert all((one == root).all() for one in arrays)


@on_threads(SIZE)
def test_p109_objects_to_and_from_each_root_of_a_group_in_any_order(rank: int) -> None:
    for group, ranks in groups(rank):
        for root in ranks:
            found: list[Any] | None = [None] * len(ranks) if rank == root else None
            ah.gather_object({"from": rank}, found, root, group)
            assert found is None or found == [{"from": one} for one in ranks]
            mine: list[Any] = [None]
            given = [(root, to) for to in ranks] if rank == root else None
            ah.scatter_object_list(mine, given, root, group)
            assert mine == [(root, rank)]
        everywhere: list[Any] = [None] * len(ranks)
        ah.all_gather_object(everywhere, rank, group)
        assert everywhere == ranks


@on_threads(SIZE)
def test_arrays_of_any_shape_to_and_from_each_root_of_a_group_in_any_order(rank: int) -> None:
    for group, ranks in groups(rank):
        for root in ranks:
            found = ah.gather_v(np.full(rank + 1, rank), root, group)
            assert (found is None) == (rank != root)
            assert [one.tolist() for one in found or ()] == (
                [[one] * (one + 1) for one in ranks] if rank == root else []
            )
            given = [np.full(to + 1, root) for to in ranks] if rank == root else None
            assert ah.scatter_v(given, root, group).tolist() == [root] * (rank + 1)


# ---------------------------------------------------------------- blocks


def blocks(name: str, rank: int) -> None:
    """Make a call of which every rank gets blocks, in the order of the group."""
    for group, _ in groups(rank):
        for length in LENGTHS:
            made = case(name, group.rank, group.size, length)
            made.run(ah, group=group)
            right(made)
            made = case(name, group.rank, group.size, length)
            assert made.run(group).wait(20)
            right(made)


@on_threads(SIZE)
def test_p033_all_gather_in_the_order_of_the_group(rank: int) -> None:
    blocks("all_gather", rank)
    blocks("all_gather_into_tensor", rank)


@on_threads(SIZE)
def test_p038_reduce_scatter_in_the_order_of_the_group(rank: int) -> None:
    blocks("reduce_scatter", rank)


@on_threads(SIZE)
def test_p039_reduce_scatter_tensor_in_the_order_of_the_group(rank: int) -> None:
    blocks("reduce_scatter_tensor", rank)


@on_threads(SIZE)
def test_p041_all_to_all_in_the_order_of_the_group(rank: int) -> None:
    blocks("all_to_all", rank)


@on_threads(SIZE)
def test_p042_all_to_all_single_in_the_order_of_the_group(rank: int) -> None:
    blocks("all_to_all_single", rank)
    for group, ranks in groups(rank):
        sizes = [1 + one for one in ranks]  # rank i gives every rank i + 1 rows
        given, got = [1 + rank] * group.size, np.full(sum(sizes), -1)
        ah.all_to_all_single(got, np.full(sum(given), rank), sizes, given, group)
        assert got.tolist() == [one for one in ranks for _ in range(one + 1)]


@on_threads(SIZE)
def test_p020_reductions_in_the_order_of_the_group(rank: int) -> None:
    """A user's noncommutative operation shows the order of operands."""
    ordered = ah.ReduceOp.user(lambda a, b: 10 * a + b)
    for group, ranks in groups(rank):
        x = np.array([rank])
        ah.all_reduce(x, ordered, group)
        assert x.tolist() == [int("".join(map(str, ranks)))]


# ---------------------------------------------------------------- messages


@on_threads(SIZE)
def test_p051_messages_between_all_pairs_of_a_group_in_any_order(rank: int) -> None:
    for group, ranks in groups(rank):
        pg, others = ah.process_group(group), [one for one in ranks if one != rank]
        for length in LENGTHS:
            works = []
            got = {one: np.full(length, -1) for one in others}
            for other in others:
                place = ranks.index(other)
                works.append(pg.send([np.full(length, 10 * rank + other)], place, 3))
                works.append(pg.recv([got[other]], place, 3))
            for work in works:
                assert work.wait(20)
            for other, array in got.items():
                assert (array == 10 * other + rank).all()
            assert [work.source_rank() for work in works[1::2]] == [*map(ranks.index, others)]


@on_threads(SIZE)
def test_p108_messages_to_ranks_of_the_world_and_of_a_group_in_any_order(rank: int) -> None:
    for group, ranks in groups(rank):
        after = ranks[(group.rank + 1) % len(ranks)]
        before = ranks[group.rank - 1]
        for length in LENGTHS:
            for to, source in (
                ({"dst": after}, {"src": before}),
                (
                    {"group_dst": ranks.index(after)},
                    {"group_src": ranks.index(before)},
                ),
            ):
                x, got = np.full(length, rank), np.full(length, -1)
                sent = ah.isend(x, group=group, tag=7, **to)
                assert ah.recv(got, group=group, tag=7, **source) == before
                assert (got == before).all()
                sent.wait()
                if group.rank == 0:
                    ah.send(x, group=group, **to)
                    assert ah.irecv(got, group=group, **source).wait(20)
                else:
                    assert ah.irecv(got, group=group, **source).wait(20)
                    ah.send(x, group=group, **to)
                assert (got == before).all()
            there, back = np.full(length, -1), np.full(length, -1)
            works = ah.batch_isend_irecv(
                [
                    ah.P2POp(ah.isend, np.full(length, rank), after, group),
                    ah.P2POp(ah.irecv, there, group=group, group_peer=ranks.index(before)),
                    ah.P2POp(ah.isend, np.full(length, -rank), before, group, tag=1),
                    ah.P2POp(ah.irecv, back, after, group, tag=1),
                ]
            )
            for work in works:
                assert work.wait(20)
            assert (there == before).all()
            assert (back == -after).all()


@on_threads(SIZE)
def test_p111_who_sent_is_named_as_the_world_does_in_a_group_in_any_order(rank: int) -> None:
    for group, ranks in groups(rank):
        if rank == ranks[0]:
            seen = set()
            for _ in ranks[1:]:
                x = np.full(2, -1)
                seen.add(ah.recv(x, group=group))
                assert x[0] in seen
            assert seen == {*ranks[1:]}
            for _ in ranks[1:]:
                x = np.full(2, -1)
                work = ah.process_group(group).recv_anysource([x], 5)
                assert work.wait(20)
                assert ranks[work.source_rank()] == x[0]
        else:
            ah.send(np.full(2, rank), ranks[0], group)
            ah.process_group(group).send([np.full(2, rank)], 0, 5).wait(20)
        ah.barrier(group)


@on_threads(SIZE)
def test_p109_objects_are_sent_to_ranks_of_a_group_in_any_order(rank: int) -> None:
    for group, ranks in groups(rank):
        if rank == ranks[0]:
            for other in ranks[1:]:
                ah.send_object_list([rank, other], other, group)
        else:
            items: list[Any] = [None, None]
            assert ah.recv_object_list(items, ranks[0] if rank % 2 else None, group) == ranks[0]
            assert items == [ranks[0], rank]


# ---------------------------------------------------------------- who is named


@on_threads(SIZE)
def test_p004_who_is_missing_is_named_as_the_world_does(rank: int) -> None:
    for group, ranks in groups(rank):
        ah.barrier(group)  # all have made it
        absent, *others = ranks
        if rank == absent:
            for other in others:
                ah.recv(np.zeros(1), other)
            continue
        with pytest.raises(ah.CollectiveTimeout) as found:
            ah.all_reduce(np.ones(3), group=group, timeout=_SHORT)
        assert absent in found.value.missing_ranks  # beside those that were slow
        ah.send(np.zeros(1), absent)
    ah.barrier()  # nobody leaves before all are told


@on_threads(SIZE)
def test_p111_who_does_not_send_is_named_as_the_world_does(rank: int) -> None:
    for group, ranks in groups(rank):
        ah.barrier(group)  # all have made it
        silent, *others = ranks
        if rank == silent:
            for other in others:
                ah.recv(np.zeros(1), other)
            continue
        for source in ({"src": silent}, {"group_src": 0}, {"src": silent}):
            with pytest.raises(ah.CollectiveTimeout, match=r"from rank 0 \(tag 0\)") as found:
                ah.recv(np.zeros(1), group=group, timeout=_SHORT, **source)
            assert found.value.missing_ranks == (silent,), str(found.value)
        ah.send(np.zeros(1), silent)
    ah.barrier()  # nobody leaves before all are told


@on_threads(SIZE)
def test_p047_who_does_not_pass_is_named_as_the_world_does(rank: int) -> None:
    for group, ranks in groups(rank):
        ah.monitored_barrier(group)
        absent, *others = ranks
        if rank == absent:
            for other in others:
                ah.recv(np.zeros(1), other)
            continue
        with pytest.raises(ah.CollectiveTimeout) as found:
            ah.monitored_barrier(group, _SHORT, wait_all_ranks=True)
        assert absent in found.value.missing_ranks  # beside those that were slow
        ah.send(np.zeros(1), absent)
    ah.barrier()  # nobody leaves before all are told


@pytest.mark.parametrize("name", ["broadcast", *REDUCING])
def test_p007_who_called_something_else_is_named_by_its_place(name: str) -> None:
    @on_threads(SIZE)
    def body(rank: int) -> None:
        for group, ranks in groups(rank):
            length = 5 if rank == ranks[-1] else 4
            made = case(name, group.rank, group.size, length)
            arguments = _rooted(made, ranks[0]) if name in _ROOT_AT else made.arguments
            with pytest.raises(ah.CollectiveMismatch) as found:
                getattr(ah, name)(*arguments, group=group)
            last, table = len(ranks) - 1, found.value.table  # of those that have told in time
            rows = {at: call.partition(" at ")[0] for at, call in table.items()}
            assert {*rows} <= {*range(len(ranks))}
            for at, call in rows.items():
                is_like_mine = call == rows[group.rank]
                assert is_like_mine == ((at == last) == (group.rank == last)), rows
        ah.barrier()  # nobody leaves before all have heard it

    body()
