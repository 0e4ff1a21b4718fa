"""Plain collectives over links on their callers' threads: values, running ahead, and failures."""

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

import allhands as ah
from allhands.engine.direct_calls import DirectCalls
from programs.played_hosts import play_host
from programs.protocol import CheckedLabel, failure, hear, tell

DTYPES = ("int64", "float32", "complex64", "float16", "uint16")
COUNTS = (1, 8, 1000, 16_384, 65_536, 131_072, 300_000, 900_000)


def _join(backend: str = "socket") -> tuple[int, int]:
    """Join a world; a backend "hosts aab" is as `play_host` has it, "verified ..." verifies."""
    verify, backend = backend.startswith("verified "), backend.removeprefix("verified ")
    if backend.startswith("hosts "):
        play_host(backend.removeprefix("hosts "))
        backend = "auto"
    ah.init_process_group(backend=backend, timeout=30, verify=verify)
    return ah.get_rank(), ah.get_world_size()


def _count_direct() -> int:
    direct = ah.default_group().submitter.engine.order.direct_calls
    return 0 if direct is None else len(direct.records(1 << 20))


def _warm_up(calls: int = 200) -> None:
    x = np.zeros(4)
    for _ in range(calls):
        ah.all_reduce(x)
    assert _count_direct() > 2, "calls do not go this way"


def _check_all_reduce(me: int, size: int, count: int, number: int) -> bool:
    x = np.full(count, me + number, DTYPES[number % len(DTYPES)])
    ah.all_reduce(x)
    return bool((x == size * (size - 1) // 2 + size * number).all())


def _check_average(me: int, size: int, count: int, number: int) -> bool:
    x = np.full(count, me + number, np.float32)
    ah.all_reduce(x, ah.ReduceOp.AVG)
    return bool((x == (size - 1) / 2 + number).all())


def _check_integer_average(me: int, size: int, count: int, number: int) -> bool:
    x = np.full(count, -number - me, np.int32)
    ah.all_reduce(x, ah.ReduceOp.AVG)
    return bool((x == int(-(size * (size - 1) // 2 + size * number) / size)).all())


def _check_broadcast(me: int, size: int, count: int, number: int) -> bool:
    x = np.full(count, me * 100_000 + number)
    ah.broadcast(x, number % size)
    return bool((x == number % size * 100_000 + number).all())


def _check_reduce(me: int, size: int, count: int, number: int) -> bool:
    x = np.full(count, 1.5 * me + number)
    ah.reduce(x, number % size)
    mine = 1.5 * size * (size - 1) / 2 + size * number
    return bool((x == (mine if me == number % size else 1.5 * me + number)).all())


def _check_all_gather(me: int, size: int, count: int, number: int) -> bool:
    x, y = np.full((count, 1), me + number, np.uint32), np.empty((size, count, 1), np.uint32)
    ah.all_gather_into_tensor(y, x)
    return bool((y == np.arange(number, number + size).reshape(size, 1, 1)).all())


def _check_list(me: int, size: int, count: int, number: int) -> bool:
    x = np.full((count, 1), me + number, np.uint32)
    ys = [np.empty((1, count), np.uint32) for _ in range(size)]
    ah.all_gather(ys, x)
    return all((y == rank + number).all() for rank, y in enumerate(ys))


def _check_reduce_scatter(me: int, size: int, count: int, number: int) -> bool:
    x = np.arange(size * count, dtype=np.int64) * (number + me)
    y = np.empty(count, np.int64)
    ah.reduce_scatter_tensor(y, x)
    total = size * (size - 1) // 2 + size * number
    return bool((y == np.arange(me * count, (me + 1) * count) * total).all())


def _check_reduce_scatter_of_lists(me: int, size: int, count: int, number: int) -> bool:
    xs = [np.arange(count, dtype=np.int64) * (number + me) + rank for rank in range(size)]
    if number % 3 == 0:  # rows of one array
        xs = list(np.stack(xs))
    if number % 3 == 1:
        xs = [xs[0]] * size
    y = np.empty((count, 1), np.int64)
    ah.reduce_scatter(y, xs)
    total = size * (size - 1) // 2 + size * number
    rank = 0 if number % 3 == 1 else me
    return bool((y.reshape(-1) == np.arange(count) * total + rank * size).all())


def _check_gather(me: int, size: int, count: int, number: int) -> bool:
    x, root = np.full((count, 1), me + number, np.uint32), number % size
    ys = [np.empty((1, count), np.uint32) for _ in range(size)] if me == root else None
    ah.gather(x, ys, root)
    return all((y == rank + number).all() for rank, y in enumerate(ys or ()))


def _check_scatter(me: int, size: int, count: int, number: int) -> bool:
    x, root = np.empty((count, 1), np.int16), number % size
    ys = [np.full((1, count), rank + number, np.int16) for rank in range(size)]
    if number % 3 == 1:
        ys = [ys[0]] * size
    ah.scatter(x, ys if me == root else None, root)
    return bool((x == (0 if number % 3 == 1 else me) + number).all())


def _check_exchange(me: int, size: int, count: int, number: int) -> bool:
    x = np.repeat(np.arange(size, dtype=np.int32) * size + me + number, count)
    y = np.empty((size, count), np.int32)
    ah.all_to_all_single(y, x)
    wanted = np.repeat(me * size + np.arange(size) + number, count)
    return bool((y.reshape(-1) == wanted).all())


def _check_exchange_of_lists(me: int, size: int, count: int, number: int) -> bool:
    """Exchange blocks that are of one size, now and then but for those between two ranks."""
    lengths = [count + (number % 5 == 0 and {me, peer} == {0, 1}) for peer in range(size)]
    xs = [np.full(n, me * size + peer + number) for peer, n in enumerate(lengths)]
    if number % 5 == 1:
        xs = [xs[0]] * size
    ys = [np.empty(n, np.int64) for n in lengths]
    ah.all_to_all(ys, xs)
    rank = 0 if number % 5 == 1 else me
    return all((y == peer * size + rank + number).all() for peer, y in enumerate(ys))


def _check_objects(me: int, size: int, count: int, number: int) -> bool:
    """Exchange objects of which some ranks' are packed, others not, by number and rank."""
    lengths = [(rank + number) % 3 * min(count, 2000) for rank in range(size)]
    found: list[Any] = [None] * size
    ah.all_gather_object(found, (me, bytes(lengths[me])))
    return found == [(rank, bytes(lengths[rank])) for rank in range(size)]


def _check_object_of_a_root(me: int, size: int, count: int, number: int) -> bool:
    root = number % size
    value = [number, "x" * (number % 2 * min(count, 10_000))]
    values = list(value) if me == root else [None, None]
    ah.broadcast_object_list(values, root)
    return values == value


def _check_arrays(me: int, size: int, count: int, number: int) -> bool:
    parts = ah.all_to_all_v([np.full(rank * 9 + number % 4, me, np.int64) for rank in range(size)])
    return [one.tolist() for one in parts] == [[r] * (me * 9 + number % 4) for r in range(size)]


def _check_barrier(me: int, size: int, count: int, number: int) -> bool:
    ah.barrier()
    return True


_CHECKS: tuple[Callable[[int, int, int, int], bool], ...] = (
    _check_all_reduce,
    _check_average,
    _check_integer_average,
    _check_broadcast,
    _check_reduce,
    _check_all_gather,
    _check_list,
    _check_reduce_scatter,
    _check_reduce_scatter_of_lists,
    _check_barrier,
    _check_gather,
    _check_scatter,
    _check_exchange,
    _check_exchange_of_lists,
    _check_objects,
    _check_object_of_a_root,
    _check_arrays,
)


def call_all_kinds(seed: int, phases: int, backend: str = "socket") -> None:
    """Make runs of calls of one kind, in an order drawn alike on all ranks."""
    me, size = _join(backend)
    drawn, wrong, seen = random.Random(seed), [], 0
    for _ in range(phases):
        check, count = drawn.choice(_CHECKS), drawn.choice(COUNTS)
        if drawn.random() < 0.2:
            ah.all_gather_object([None] * size, me)
        for number in range(drawn.choice((1, 3, 40))):
            if not check(me, size, count, number):
                wrong.append((check.__name__, count, number))
        seen = max(seen, _count_direct())
    tell("done", wrong=wrong, direct=seen, how=ah.default_group().explain())
    ah.destroy_process_group()


def gather_into_lists(backend: str = "socket") -> None:
    """Gather into lists that the core takes, and into such as it leaves to the checked way."""
    me, size = _join(backend)
    _warm_up()
    wrong: list[object] = []
    ways: list[bool] = []

    def gather(what: str, ys: list[Any], x: Any, is_direct: bool) -> None:
        direct_ones = 0
        for _ in range(20):  # some have links to open, or the loop has something to do
            direct = ah.default_group().submitter.engine.order.direct_calls
            before = direct.last_call()
            ah.all_gather(ys, x)
            direct_ones += direct.last_call() != before
            wrong.extend(what for rank, y in enumerate(ys) if not (y == rank + 1).all())
            ah.barrier()
            for y in ys:
                y[...] = 0
        if is_direct != (direct_ones > 0):
            wrong.append((what, direct_ones))

    x = np.full(30, me + 1.0)
    gather("a list", [np.empty(30) for _ in range(size)], x, True)
    gather("rows", list(np.empty((size, 30))), x, True)
    gather("shapes", [np.empty((5, 6)) for _ in range(size)], x, True)
    gather("unlike shapes", [np.empty((30, 1, 1)[: 1 + at % 3]) for at in range(size)], x, False)
    gather("strides", [np.empty(60)[::2] for _ in range(size)], x, False)
    gather("bytes", [np.empty(7, np.int8) for _ in range(size)], np.full(7, me + 1, np.int8), True)
    ys = [np.empty(30) for _ in range(size)]
    errors = [
        failure(lambda: ah.all_gather(ys[:-1], x))["error"],
        failure(lambda: ah.all_gather([ys[0]] * size, x))["error"],
        failure(lambda: ah.all_gather([*ys[:-1], np.empty(29)], x))["error"],
    ]
    gather("after errors", ys, x, True)
    for _ in range(20):  # inputs of a list, which the core joins
        before = ah.default_group().submitter.engine.order.direct_calls.last_call()
        ah.reduce_scatter(y := np.empty(30), [np.full(30, me + rank) * 1.0 for rank in range(size)])
        wrong.extend("reduced" for _ in [y] if not (y == size * (size - 1) / 2 + size * me).all())
        ways.append(ah.default_group().submitter.engine.order.direct_calls.last_call() != before)
        ah.barrier()
    if not any(ways):
        wrong.append("reduce_scatter of lists")
    for _ in range(3):  # an input among the outputs is copied
        mine = np.full(30, me + 1.0)
        ah.all_gather([*ys[:-1], mine], mine)
        wrong.extend("own" for rank, y in enumerate(ys[:-1]) if not (y == rank + 1).all())
        wrong.extend("own" for _ in [mine] if not (mine == size).all())
    tell("done", wrong=wrong, errors=errors)
    ah.destroy_process_group()


def label_calls(backend: str = "socket") -> None:
    """Make calls under labels, the same and new ones, and at last one that only some ranks give."""
    me, size = _join(backend)
    _warm_up()
    wrong: list[object] = []
    ways: dict[str, int] = {}
    direct = ah.default_group().submitter.engine.order.direct_calls
    calls: dict[str, Callable[[str], Any]] = {
        "same": lambda label: _sum(me, label="same"),
        "new": lambda label: _sum(me, label=label),
        "none": lambda label: _sum(me, label=None),
        "empty": lambda label: _sum(me, label=""),
        "rooted": lambda label: _give(me, size, label="rooted"),
        "begun": lambda label: _sum(me, label="begun", begins=True),
    }
    for number in range(40):
        for name, call in calls.items():
            before = direct.last_call()
            if call(f"step {number}") != (size - 1 if name == "rooted" else size * (size + 1) // 2):
                wrong.append((name, number))
            ways[name] = ways.get(name, 0) + (direct.last_call() != before)
    labels = [one.label for one in ah.default_group().submitter.engine.recorder.list_records()]
    told = failure(lambda: _sum(me, label="mine" if me else "yours"))
    tell("done", wrong=wrong, ways=ways, labels=labels[-240:], **told)


def check_labels(said: dict[str, Any]) -> None:
    """Check what a rank tells of `label_calls`."""
    assert said["wrong"] == []
    assert all(count > 0 for count in said["ways"].values()), said["ways"]
    counts = [said["labels"].count(one) for one in ("same", "rooted", "begun", "")]
    assert counts == [40, 40, 40, 80]
    assert [said["labels"].count(f"step {number}") for number in range(40)] == [1] * 40
    assert said["error"] == "CollectiveMismatch", said
    assert "yours" in said["text"]
    assert "mine" in said["text"]


def _sum(me: int, *, label: str | None, begins: bool = False) -> float:
    x = np.full(3, me + 1.0)
    if begins:
        work = ah.all_reduce(x, label=label, async_op=True)
        work.wait()
        assert work.label == label
    else:
        ah.all_reduce(x, label=label)
    return float(x[0])


def _give(me: int, size: int, *, label: str) -> float:
    x = np.full(3, float(me))
    ah.broadcast(x, size - 1, label=label)
    return float(x[0])


def run_far_ahead(calls: int, count: int, backend: str = "socket") -> None:
    """Let all but the root be as many calls ahead as they can be, more than once."""
    me, _size = _join(backend)
    wrong = []
    for number in range(10):
        _check_reduce(me, _size, count, number)
    for _ in range(2):
        ah.barrier()
        if me == 0:
            hear()
        for number in range(calls):
            x = np.full(count, me + number, np.int64)
            ah.reduce(x, 0)
            total = _size * (_size - 1) // 2 + _size * number
            if me == 0 and not (x == total).all():
                wrong.append(number)
    tell("done", wrong=wrong)
    ah.destroy_process_group()


def miss_a_call(backend: str = "socket") -> None:
    """Let a rank stay away from one call of many; then all go on."""
    me, size = _join(backend)
    _warm_up()
    x = np.full(100, float(me))
    told: dict[str, Any] = {}
    if me == 0:
        told = failure(lambda: ah.all_reduce(x, timeout=0.5))
        told["kept"] = bool((x == 0).all())
    tell("missed", **told)
    hear()
    if me != 0:
        told = failure(lambda: ah.all_reduce(x, timeout=0.5))
        told["sum"] = bool((x == size * (size - 1) // 2).all())
    after = np.full(3, me + 1)
    ah.all_reduce(after)
    tell("done", right=bool((after == size * (size + 1) // 2).all()), **told)
    ah.destroy_process_group()


def disagree_on_sizes(backend: str = "socket") -> None:
    """Exchange blocks of which one is not of the size that its receiver wants."""
    me, size = _join(backend)
    _warm_up()
    direct, made_there = ah.default_group().submitter.engine.order.direct_calls, set()
    for number in range(40):
        assert _check_exchange_of_lists(me, size, 20, number)
        made_there.add(direct.last_call()[1])
    xs = [np.full(20 + (me == 0 and peer == 1), me) for peer in range(size)]
    ys = [np.zeros(20, np.int64) for _ in range(size)]
    said = failure(lambda: ah.all_to_all(ys, xs))
    tell(
        "done",
        kept=not any(map(np.any, ys)),
        is_right=_check_exchange_of_lists(me, size, 20, 1),
        made_there=sorted(made_there),
        **said,
    )
    ah.destroy_process_group()


def call_differently(backend: str = "socket") -> None:
    me, _ = _join(backend)
    _warm_up()
    x = np.zeros(10 + me % 2)
    tell("done", **failure(lambda: ah.all_reduce(x)))


def lose_a_rank(backend: str = "socket") -> None:
    me, size = _join(backend)
    _warm_up()
    x = np.zeros(100)

    def go_on() -> None:
        for number in range(1 << 30):
            if number == 300 and me == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            ah.all_reduce(x)

    tell("done", **failure(go_on))


def interrupt_a_call(backend: str = "socket", victim: int = 0) -> None:
    """Interrupt one rank in a call that the others do not make, until it has heard of that."""
    me, _ = _join(backend)
    _warm_up()
    x = np.zeros(100)
    told: dict[str, Any] = {}
    if me == victim:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        try:
            ah.all_reduce(x)
        except KeyboardInterrupt:
            told = {"error": "KeyboardInterrupt"}
        tell("interrupted", **told)
    else:
        hear()
        tell("interrupted", **failure(lambda: ah.all_reduce(x)), kept=not x.any())
    hear()


def interrupt_a_call_once_begun(moment: str) -> None:
    """Interrupt a call of a large array as a function returns, before anybody waits for it."""
    me, _ = _join()
    _warm_up()
    x = np.full(1_500_000, me + 1.0)

    def interrupt(frame: FrameType, event: str, _argument: object) -> None:
        if event == "return" and frame.f_code.co_name == moment:
            sys.setprofile(None)
            os.kill(os.getpid(), signal.SIGINT)

    if me == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.setprofile(interrupt)
        try:
            ah.all_reduce(x)
            tell("interrupted", error="")
        except KeyboardInterrupt:
            tell("interrupted", error="KeyboardInterrupt")
        sys.setprofile(None)
        x[:] = 4.0  # it is this program's again
    else:
        hear()  # that the other one has been interrupted: else its call might end before
        tell("interrupted", **failure(lambda: ah.all_reduce(x)))
        x[:] = 5.0
    y = x.copy()
    ah.all_reduce(y)
    tell("done", kept=bool((x == 4.0 + me).all()), right=bool((y == 9.0).all()))
    ah.destroy_process_group()


def call_from_two_threads() -> None:
    """Make calls in two threads at once, which no rank could tell apart."""
    _join()
    _warm_up()
    errors: list[str] = []

    def call() -> None:
        try:
            for _ in range(20_000):
                ah.all_reduce(np.zeros(4))
        except ah.AllhandsError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=call, name=f"worker {at}") for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    tell("done", errors=errors)


def record_calls(backend: str = "socket") -> None:
    """Look at the records of calls that end at once, and of one that is waited for."""
    me, _ = _join(backend)
    _warm_up(calls=100)
    before = ah.default_group().sequence
    if me == 1:
        time.sleep(0.2)  # far longer than a call is carried out without the loop
    ah.barrier()
    for _ in range(3):
        ah.broadcast(np.zeros(7), 0)
        ah.broadcast(np.zeros(7), 0)
    recorder = ah.default_group().submitter.engine.recorder
    rows = [one for one in recorder.list_records() if one.sequence > before]
    tell(
        "done",
        numbers=[one.sequence - before for one in rows],
        operations=[one.operation for one in rows],
        outcomes=[one.outcome for one in rows],
        how=[one.how for one in rows],
        places=[f"{os.path.basename(one.file)} {one.function}" for one in rows],
        signatures=sorted({one.signature for one in rows}),
        direct=_count_direct(),
    )
    ah.destroy_process_group()


def alternate_calls(shapes: int, turns: int) -> None:
    """Make two calls by turns, one of them with another shape each time that the turns are over."""
    _join()
    _warm_up()
    compiled: list[str] = []
    compile_row = DirectCalls.compile

    def count(self: DirectCalls, kind: str, arguments: Any) -> Any:
        row = compile_row(self, kind, arguments)
        if row is not False:  # else it is asked for again
            compiled.append(f"{kind} {getattr(arguments[0], 'shape', ())}" if arguments else kind)
        return row

    DirectCalls.compile = count  # type: ignore[method-assign]
    for number in range(shapes):
        x = np.zeros(number + 1)
        for _ in range(turns):
            ah.all_reduce(x)
            ah.barrier()
    tell("done", compiled=len(compiled), apart=len({*compiled}), direct=_count_direct())
    ah.destroy_process_group()


def hand_every_call_over(backend: str = "socket") -> None:
    """Let every other call be late by more than it is carried out without the loop."""
    me, size = _join(backend)
    _warm_up()
    handed: list[int] = []
    hand_over = DirectCalls.hand_over

    def count(self: DirectCalls, *arguments: Any) -> Any:
        handed.append(1)
        return hand_over(self, *arguments)

    DirectCalls.hand_over = count  # type: ignore[method-assign, assignment]
    wrong = []
    for number in range(48):
        check = _CHECKS[number % len(_CHECKS)]
        for again in range(3):
            if again and number % size == me:
                time.sleep(0.01)
            if not check(me, size, COUNTS[number % len(COUNTS)], number):
                wrong.append((check.__name__, number))
    tell("done", wrong=wrong, handed=len(handed))
    ah.destroy_process_group()


def mix_ways(seed: int, calls: int, backend: str = "socket") -> None:
    """Make calls that each rank takes another way, after a pause or not, in an order drawn alike.

    What is begun but not waited for goes through the queue; a call that is late goes on there. One
    with a `CheckedLabel` begins on its caller's thread, but is checked first.
    """
    me, size = _join(backend)
    alike, own, wrong, seen = random.Random(seed), random.Random(seed + me), [], 0
    for number in range(calls):
        if own.random() < 0.05:
            time.sleep(0.005)
        count = alike.choice((1, 8, 1000, 16_384))
        begins = own.random() < 0.3
        kind = alike.choice(("all_reduce", "broadcast", "barrier", "reduce", "all_gather"))
        x, y = np.full(count, me + number), np.empty((size, count), np.int64)
        root, label = (
            alike.randrange(size),
            alike.choice((None, None, "plain", CheckedLabel("checked"))),
        )
        wanted: Any = size * (size - 1) // 2 + size * number
        work = None
        if kind == "all_reduce":
            work = ah.all_reduce(x, async_op=begins, label=label)
        elif kind == "broadcast":
            work, wanted = ah.broadcast(x, root, async_op=begins, label=label), root + number
        elif kind == "barrier":
            work, wanted = ah.barrier(async_op=begins, label=label), me + number
        elif kind == "reduce":
            work = ah.reduce(x, root, async_op=begins, label=label)
            wanted = wanted if me == root else me + number
        else:
            work = ah.all_gather_into_tensor(y, x, async_op=begins, label=label)
            x, wanted = y, np.arange(number, number + size).reshape(size, 1)
        if work is not None:
            work.wait()
        if not (x == wanted).all():
            wrong.append((kind, count, number))
        if number % 50 == 0:
            ah.all_gather_object([None] * size, me)
            seen = max(seen, _count_direct())
    tell("done", wrong=wrong, direct=seen)
    ah.destroy_process_group()
