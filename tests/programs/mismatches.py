"""Ranks with different calls, or different arguments of a call."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.protocol import failure, hear, tell

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Brought:
    """A rank's inputs: arrays of n, 3 n and 3 n + 1 elements."""

    me: int
    n: int
    x: Array
    y: Array
    w: Array

    def blocks(self, root: int) -> list[Array] | None:
        """Return a block of n elements for each rank, at the root alone."""
        return list(self.w[: 3 * self.n].reshape(3, self.n)) if self.me == root else None


Call = Callable[..., Any]
"""Makes a call with what a rank brings; options of the call by name."""


def _uneven(b: Brought, **how: Any) -> Any:
    # Rank 0 gives rank 1 less than that expects, and rank 2 as much as that expects.
    n = b.n
    gives, expects = ([n, n - 1, n + 1], [n] * 3) if b.me == 0 else ([n] * 3, [n + 1, n, n])
    return ah.all_to_all_single(b.w[: sum(expects)], b.y, expects, gives, **how)


def _sum(b: Brought, **how: Any) -> Any:
    return ah.all_reduce(b.x, **how)


def _broadcast(b: Brought, **how: Any) -> Any:
    return ah.broadcast(b.x, 0, **how)


KINDS: dict[str, tuple[tuple[Call, ...], tuple[Call, ...]]] = {
    "operation": ((lambda b, **how: ah.all_gather_into_tensor(b.y, b.x, **how),), (_sum,)),
    "dtype": ((lambda b, **how: ah.all_reduce(b.x.view(np.int64), **how),), (_sum,)),
    "count": ((lambda b, **how: ah.all_reduce(b.x[1:], **how),), (_sum,)),
    "size of blocks": (
        (lambda b, **how: ah.reduce_scatter(b.x[1:], [b.x[1:]] * 3, **how),),
        (lambda b, **how: ah.reduce_scatter(b.x, [b.x] * 3, **how),),
    ),
    "reduce op": ((lambda b, **how: ah.all_reduce(b.x, ah.ReduceOp.MAX, **how),), (_sum,)),
    "root of broadcast": (
        (lambda b, **how: ah.broadcast(b.x, 1, **how),),
        (lambda b, **how: ah.broadcast(b.x, 2, **how),),
    ),
    "root of reduce": (
        (lambda b, **how: ah.reduce(b.x, 1, **how),),
        (lambda b, **how: ah.reduce(b.x, 2, **how),),
    ),
    "root of gather": (
        (lambda b, **how: ah.gather(b.x, b.blocks(1), 1, **how),),
        (lambda b, **how: ah.gather(b.x, b.blocks(0), 0, **how),),
    ),
    "root of scatter": (
        (lambda b, **how: ah.scatter(b.x, b.blocks(1), 1, **how),),
        (lambda b, **how: ah.scatter(b.x, b.blocks(2), 2, **how),),
    ),
    "splits": (
        (lambda b, **how: ah.all_to_all_single(b.y, b.y, [b.n] * 3, [b.n] * 3, **how),),
        (_uneven,),
    ),
    "order": ((_broadcast, _sum), (_sum, _broadcast)),
    "missing call": ((lambda b, **how: ah.barrier(**how),), (_sum,)),
    "label": (
        (lambda b, **how: ah.all_reduce(b.x, label="a", **how),),
        (lambda b, **how: ah.all_reduce(b.x, label="b", **how),),
    ),
    "label on one rank": (
        (lambda b, **how: ah.barrier(label="a", **how),),
        (lambda b, **how: ah.barrier(**how),),
    ),
}
"""What rank 1 calls, and what the others do."""


def call_differently(async_op: bool) -> None:
    """Make every pair of differing calls, with few elements and with many."""
    ah.init_process_group(timeout=20)
    me = ah.get_rank()
    how = {"async_op": True} if async_op else {}
    for n in (6, 40_000, 400_000):
        for kind, pair in KINDS.items():
            b = Brought(
                me, n, np.arange(n) + 1.0 * me, np.arange(3.0 * n) - me, np.arange(3.0 * n + 1)
            )
            arrays = (b.x, b.y, b.w)
            before = [array.tobytes() for array in arrays]
            ah.barrier()
            begun = time.monotonic()
            try:
                for call in pair[0] if me == 1 else pair[1]:
                    work = call(b, **how)
                    if async_op:
                        work.wait()
                tell("ended", kind=kind, n=n)
            except ah.CollectiveMismatch as error:
                seconds = time.monotonic() - begun
                table = {str(rank): row for rank, row in error.table.items()}
                kept = before == [array.tobytes() for array in arrays]
                tell("refused", kind=kind, n=n, table=table, kept=kept, seconds=seconds)
            z = np.arange(n) + float(me)
            ah.all_reduce(z)
            tell("next", right=bool((z == 3 * np.arange(n) + 3).all()))
    ah.destroy_process_group()


CALLS: dict[str, Callable[[int, Array, Array], Any]] = {
    "all_reduce": lambda me, x, y: ah.all_reduce(x),
    "broadcast": lambda me, x, y: ah.broadcast(x, 0),
    "reduce": lambda me, x, y: ah.reduce(x, 2),
    "scatter": lambda me, x, y: ah.scatter(x, [x] * 3 if me == 0 else None, 0),
    "all_gather_into_tensor": lambda me, x, y: ah.all_gather_into_tensor(y, x),
    "reduce_scatter_tensor": lambda me, x, y: ah.reduce_scatter_tensor(x, y),
    "all_to_all_single": lambda me, x, y: ah.all_to_all_single(y, y),
}
"""Calls of an array of each rank's, and of one for all ranks."""


def miss_a_rank() -> None:
    """Make every call without rank 1, which comes only after the timeouts of the rest."""
    ah.init_process_group(timeout=20)
    me = ah.get_rank()
    makers: tuple[Callable[..., Array], ...] = (np.empty, ah.empty)
    for n in (6, 40_000, 400_000):
        for make in makers:
            for name, call in CALLS.items():
                x, y = make(n, np.float64), make(3 * n, np.float64)
                x[:], y[:] = 1 + me, 7
                before = x.tobytes(), y.tobytes()
                if me != 1:
                    with ah.deadline(0.02):
                        said = failure(lambda: call(me, x, y))
                    tell("said", call=name, kept=before == (x.tobytes(), y.tobytes()), **said)
                else:
                    hear()
                    hear()
                    with ah.deadline(0):
                        failure(lambda: call(me, x, y))
                z = np.arange(n) + float(me)
                ah.all_reduce(z)
                tell("next", right=bool((z == 3 * np.arange(n) + 3).all()))
    ah.destroy_process_group()


def differ_without_a_rank() -> None:
    """Call with different lengths on ranks 0 and 2, while rank 1 makes no call."""
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.new_group([0, 1])
    ah.barrier()
    if me == 1:
        hear()
        tell("late", **failure(lambda: ah.all_reduce(np.ones(3))))
    else:
        try:
            ah.all_reduce(np.ones(3 + me))
        except ah.CollectiveMismatch as error:
            tell("refused", table={str(rank): row for rank, row in error.table.items()})
    x = np.ones(3)
    ah.all_reduce(x)
    tell("next", right=bool((x == 3).all()))
    ah.destroy_process_group()


def _open_links(me: int) -> None:
    """Let all ranks tell each other a call: what is told later has left when a process ends."""
    failure(lambda: ah.all_reduce(np.ones(1 + me)))
    ah.barrier()


def end_after_a_mismatch(how: str) -> None:
    """Let ranks 0 and 1 end after different calls, for which rank 2 comes only then."""
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    pair = ah.new_group([1, 2])
    _open_links(me)
    x = np.ones(3 + me % 2)
    if me != 2:
        tell("refused", **failure(lambda: ah.all_reduce(x)))
        if how == "exit":
            os._exit(5)
        ah.destroy_process_group()
        return
    tell("message", **failure(lambda: ah.recv(x, 0)))
    tell("message", **failure(lambda: ah.recv(x, 1)))
    tell("other group", **failure(lambda: ah.all_reduce(x, group=pair)))
    tell("call", **failure(lambda: ah.all_reduce(x)))
    tell("next", **failure(lambda: ah.all_reduce(x)))


def go_on_after_a_mismatch(how: str) -> None:
    """Let ranks 1 and 2 end after a broadcast of other sizes, after which its root goes on."""
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    _open_links(me)
    x = np.ones(4 if me == 1 else 3)
    tell("refused", **failure(lambda: ah.broadcast(x, 0)))
    if me == 0:
        tell("next", **failure(lambda: ah.barrier()))
    elif how == "exit":
        os._exit(5)
    ah.destroy_process_group()


def end_after_all_went_well() -> None:
    """Let rank 1 end after calls that ended well, and a mismatch before those."""
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()
    tell("refused", **failure(lambda: ah.all_reduce(np.ones(3 + me))))
    ah.barrier()
    ah.barrier()
    if me == 0:
        tell("next", **failure(lambda: ah.barrier()))
    ah.destroy_process_group()


def make_a_group_late(odd: int) -> None:
    """Fail the first call of a group before rank 2 has made the group."""
    ah.init_process_group(timeout=40)
    me = ah.get_rank()
    ah.barrier()
    if me == 2:
        hear()
    group = ah.new_group([0, 1, 2])
    x, w = np.ones(5 if me == odd else 4), np.ones(15 if me == odd else 12)
    tell("refused", **failure(lambda: ah.reduce_scatter_tensor(x, w, group=group)))
    x = np.ones(3)
    ah.all_reduce(x, group=group)
    tell("next", right=bool((x == 3).all()))
    ah.destroy_process_group()


TWICE = ah.ReduceOp.user(lambda one, other: one + other, name="twice")


def _coalesced_broadcast(x: Array, w: Array, me: int, **how: Any) -> None:
    ah.default_group().broadcast_coalesced([x, w], 0).wait()


def _several_arrays(x: Array, w: Array, me: int, **how: Any) -> None:
    arrays = [x, w[0].reshape(x.shape)]
    ah.process_group().allreduce(arrays, ah.c10d.AllreduceOptions()).wait()


def _list_of_one(x: Array, w: Array, me: int, **how: Any) -> None:
    opts = ah.c10d.AllreduceOptions(asyncOp=bool(how))
    ah.process_group().allreduce([x], opts).wait()


SHAPES: dict[str, tuple[Call, str]] = {
    "all_reduce": (
        lambda x, w, me, **how: ah.all_reduce(x, **how),
        "all_reduce(float64[{}], SUM)",
    ),
    "reduce": (
        lambda x, w, me, **how: ah.reduce(x, 1, **how),
        "reduce(float64[{}], SUM, root 1)",
    ),
    "broadcast": (
        lambda x, w, me, **how: ah.broadcast(x, 1, **how),
        "broadcast(float64[{}], root 1)",
    ),
    "gather": (
        lambda x, w, me, **how: ah.gather(x, list(w) if me == 1 else None, 1, **how),
        "gather(float64[{}], root 1)",
    ),
    "scatter": (
        lambda x, w, me, **how: ah.scatter(x, list(w) if me == 1 else None, 1, **how),
        "scatter(float64[{}], root 1)",
    ),
    "all_gather": (
        lambda x, w, me, **how: ah.all_gather(list(w), x, **how),
        "all_gather(float64[{}])",
    ),
    "all_gather_into_tensor": (
        lambda x, w, me, **how: ah.all_gather_into_tensor(w, x, **how),
        "all_gather_into_tensor(float64[{}])",
    ),
    "reduce_scatter": (
        lambda x, w, me, **how: ah.reduce_scatter(x, [one.reshape(x.shape) for one in w], **how),
        "reduce_scatter(float64[{}], SUM)",
    ),
    "reduce_scatter_tensor": (
        lambda x, w, me, **how: ah.reduce_scatter_tensor(
            x, w.reshape(3 * x.shape[0], *x.shape[1:]), **how
        ),
        "reduce_scatter_tensor(float64[{}], SUM)",
    ),
    "an operation of the user's": (
        lambda x, w, me, **how: ah.all_reduce(x, TWICE, **how),
        "all_reduce(float64[{}], USER(twice))",
    ),
    "scan": (lambda x, w, me, **how: ah.scan(x, **how), "scan(float64[{}], SUM)"),
    "all_reduce_coalesced": (
        lambda x, w, me, **how: ah.all_reduce_coalesced([w[0], x], **how),
        "all_reduce_coalesced(float64[{whole}],float64[{}], SUM)",
    ),
    "broadcast_coalesced": (
        _coalesced_broadcast,
        "broadcast_coalesced(float64[{}],float64[3,{whole}], root 0)",
    ),
    "several arrays a rank": (_several_arrays, "all_reduce(float64[{}], 2 arrays a rank, SUM)"),
    "a list of one": (_list_of_one, "all_reduce(float64[{}], SUM)"),
}
"""Calls that bring `x`, and how they are named in tables."""


def bring_other_shapes(async_op: bool, n: int) -> None:
    """Bring as many elements to every call, in another shape on rank 2."""
    how = {"async_op": True} if async_op else {}

    def outcome(call: Call, *brought: Any) -> object:
        try:
            work = call(*brought, **how)
            if hasattr(work, "wait"):
                work.wait()
        except ah.CollectiveMismatch as error:
            return {str(rank): row for rank, row in error.table.items()}
        return "ended well"

    ah.init_process_group(timeout=20)
    me = ah.get_rank()
    for name, (call, _) in SHAPES.items():
        for shapes in ((n // 5, 5), (n,)), ((n // 5, 5), (5, n // 5)), ((n, 1), (n,)):
            x = (np.arange(float(n)) + me).reshape(shapes[me == 2])
            w = np.arange(3.0 * n).reshape(3, n) - me
            before = x.tobytes(), w.tobytes()
            table = outcome(call, x, w, me)
            kept = before == (x.tobytes(), w.tobytes())
            y = np.arange(3.0)
            ah.all_reduce(y)
            right = y.tolist() == [0, 3, 6]
            tell("told", name=name, shapes=shapes, table=table, kept=kept, right=right)
    ah.destroy_process_group()
