"""Ranks of worlds across hosts, with shared memory within each and links between hosts."""

from collections.abc import Callable
from typing import Any

import numpy as np

import allhands as ah
from programs.protocol import failure, hear, tell

_explained: set[tuple[str, str]] = set()
"""Operations that were run, and how each says that it was carried out."""


def _check(found: Any, wanted: Any, what: str) -> None:
    assert np.array_equal(found, wanted), (what, len(wanted))


def _run(what: str, call: Callable[[], ah.Work | None]) -> None:
    work = call()
    work.wait()
    _explained.add((what, work.explain()))


def call_every_operation() -> None:
    ah.init_process_group(timeout=40)
    for length in (0, 1, 6_000, 100_001, 2_000_003):
        _reduce_everywhere(length)
        _call_with_roots(length)
        _gather_and_scatter(length)
        _run("barrier", lambda: ah.barrier(async_op=True))
    tell("said", all=sorted(_explained))
    ah.destroy_process_group()


def _reduce_everywhere(length: int) -> None:
    me, size = ah.get_rank(), ah.get_world_size()
    base = np.arange(length) % 11
    total = base * (size * (size + 1) // 2)
    for dtype in ("float32", "float16", "int64") if length < 1000_000 else ("float32",):
        for op, wanted in ((ah.ReduceOp.SUM, total), (ah.ReduceOp.MAX, base * size)):
            x = (base * (me + 1)).astype(dtype)
            _run("all_reduce", lambda: ah.all_reduce(x, op, async_op=True))
            _check(x, wanted, "all_reduce")
    x = (base * (me + 1)).astype(np.float64)
    ah.all_reduce(x, ah.ReduceOp.AVG)
    _check(x, total / size, "average")


def _call_with_roots(length: int) -> None:
    me, size = ah.get_rank(), ah.get_world_size()
    base = np.arange(length) % 11
    total = base * (size * (size + 1) // 2)
    for root in range(size):
        x = base + me
        _run("broadcast", lambda: ah.broadcast(x, root, async_op=True))
        _check(x, base + root, "broadcast")
        x = base * (me + 1)
        _run("reduce", lambda: ah.reduce(x, root, async_op=True))
        _check(x, total if me == root else base * (me + 1), "reduce")


def _gather_and_scatter(length: int) -> None:
    me, size = ah.get_rank(), ah.get_world_size()
    base = np.arange(length) % 11
    out = np.zeros(size * length, np.int16)
    mine = (base + me).astype(np.int16)
    _run("all_gather", lambda: ah.all_gather_into_tensor(out, mine, async_op=True))
    _check(out, np.concatenate([base + rank for rank in range(size)]), "all_gather")
    share = np.zeros(length, np.int16)
    _run("reduce_scatter", lambda: ah.reduce_scatter_tensor(share, out, async_op=True))
    _check(share, (base + me) * size, "reduce_scatter")


def come_late(length: int, patience: float, lateness: float) -> None:
    """Rank 1 comes on command, with `lateness` seconds; the rest have `patience`."""
    ah.init_process_group(timeout=40)
    x = np.ones(length, np.float32)
    if ah.get_rank() == 1:
        hear()
        tell("late", **failure(lambda: ah.all_reduce(x, timeout=lateness, label="step 7")))
    else:
        tell("late", **failure(lambda: ah.all_reduce(x, timeout=patience, label="step 7")))
        hear()
    y = np.full(length, ah.get_rank() + 1.0)
    ah.all_reduce(y)
    tell("sum", right=bool((y == 10).all()))
    ah.destroy_process_group()


DIFFERENT: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "count": (lambda: ah.all_reduce(np.ones(5)), lambda: ah.all_reduce(np.ones(4))),
    "reduce op": (
        lambda: ah.all_reduce(np.ones(1 << 20)),
        lambda: ah.all_reduce(np.ones(1 << 20), ah.ReduceOp.MAX),
    ),
    "operation": (ah.barrier, lambda: ah.broadcast(np.ones(5), 1)),
    "large and small": (
        lambda: ah.all_reduce(np.ones(1 << 20)),
        lambda: ah.all_to_all_single(np.ones(4), np.ones(4)),
    ),
}
"""Calls by what is different: that of most ranks, and that of one."""


def call_different(what: str, odd: int) -> None:
    ah.init_process_group(timeout=20)
    tell("different", **failure(DIFFERENT[what][ah.get_rank() == odd]))
    for length in (1, 100_000):
        y = np.full(length, ah.get_rank() + 1.0)
        ah.all_reduce(y)
        assert (y == 10).all()
    tell("sum")
    ah.destroy_process_group()


def measure_links() -> None:
    ah.init_process_group(timeout=20)
    groups = [None, ah.new_group([0, 2])]
    works = [
        ah.all_reduce(np.ones(9), group=group, async_op=True)
        for group in groups
        if group is None or ah.get_rank() != 1
    ]
    for work in works:
        work.wait()
    tell("said", texts=[work.explain() for work in works])
    ah.destroy_process_group()


def begin(timeout: float = 20) -> None:
    told = failure(lambda: ah.init_process_group(timeout=timeout))
    if told["error"] is None:
        x = np.ones(3)
        ah.all_reduce(x)
        told["sum"] = x.tolist()
        ah.destroy_process_group()
    tell("begun", **told)


def meet() -> None:
    ah.init_process_group(timeout=20)
    x = np.ones(3)
    ah.all_reduce(x)
    with ah.connect() as control:
        told = [one.address for one in control.job().members]
    tell("met", sum=x.tolist(), addresses=told)
    ah.destroy_process_group()


def fail_to_meet() -> None:
    told = failure(lambda: (ah.init_process_group(timeout=10), ah.all_reduce(np.ones(3))))
    tell("begun", **told)
