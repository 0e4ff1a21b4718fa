"""Call hooks: around calls of every face, in order, with what each of them raises."""

import asyncio
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.engine.numbering import HookedNumbering
from allhands.hooks import CallInfo, NotFinite
from allhands.testing import on_threads, run_threads
from programs import call_hooks
from support.ranks.processes import Job


class Seen:
    """What the hooks of a test saw."""

    def __init__(self) -> None:
        self.begun: list[CallInfo] = []
        self.ended: list[tuple[CallInfo, BaseException | None, float]] = []

    def after(self, call: CallInfo, error: BaseException | None, seconds: float) -> None:
        self.ended.append((call, error, seconds))

    def register(self, **options: Any) -> ah.hooks.CallHookHandle:
        return ah.on_call(self.begun.append, self.after, **options)

    @property
    def operations(self) -> list[str]:
        return [call.operation for call in self.begun]


@pytest.mark.parametrize("backend", ["auto", "socket"])
@pytest.mark.parametrize("hooked_ranks", [[0, 1, 2], [1]])
def test_every_collective_is_seen_at_its_beginning_and_end(
    job: Job, hooked_ranks: list[int]
) -> None:
    for rank, process in enumerate(job(3, call_hooks.every_collective, hooked_ranks)):
        done = process.expect("done")
        assert done["wrong"] == []
        assert done["errors"] == []
        assert done["negative"] == []
        assert done["was_direct"] == done["is_direct"]
        if rank in hooked_ranks:
            assert len(done["begun"]) >= done["made"]
            assert done["begun"] == sorted(set(done["begun"]))
            assert sorted(done["ended"]) == done["begun"]
            assert None not in done["sequences"]
            assert {"all_reduce", "all_to_all", "all_gather_v", "scan"} <= set(done["operations"])
        else:
            assert done["begun"] == []
        assert process.ended() == 0, "".join(process.errors)


def test_the_core_takes_plain_calls_but_while_there_are_hooks(job: Job) -> None:
    for process in job(2, call_hooks.every_collective, [0]):
        done = process.expect("done")
        assert done["is_direct"] == "ShmComm"
        # Without a hook there is no Python code in the way of a plain call but its own.
        assert done["functions_before"] == done["functions_after"] == ["all_reduce"]
        assert process.ended() == 0, "".join(process.errors)


def test_a_persistent_call_is_seen_until_the_hook_is_removed(job: Job) -> None:
    for process in job(2, call_hooks.persistent_call):
        done = process.expect("done")
        assert done["seen"] == ["all_reduce"]
        assert done["x"] == [4.0] * 4
        assert process.ended() == 0, "".join(process.errors)


def test_a_call_that_a_hook_refuses_takes_no_number_and_may_be_made_later(job: Job) -> None:
    ranks = job(2, call_hooks.veto)
    refused = ranks[1].expect("refused")
    assert refused["text"] == "no all_reduce"
    assert refused["x"] == [1.0, 1.0]
    ranks[1].say("go on")
    for process in ranks:
        done = process.expect("sum")
        assert (done["x"], done["sequence"]) == ([2.0, 2.0], 2)
        assert process.ended() == 0, "".join(process.errors)


@on_threads(2)
def test_a_hook_sees_what_a_call_is(rank: int) -> None:
    seen = Seen()
    x = np.ones((3, 4), np.float32)
    with seen.register():
        ah.all_reduce(x, ah.ReduceOp.MAX, label="step")
        if rank == 0:
            ah.send(x, 1, tag=7)
        else:
            ah.recv(x, 0, tag=7)
        ah.broadcast(x, 1)
    reduced, message, broadcast = seen.begun
    assert (reduced.operation, reduced.group, reduced.rank, reduced.size) == (
        "all_reduce",
        "world",
        rank,
        2,
    )
    assert (reduced.sequence, reduced.nbytes, reduced.dtype) == (None, 48, "float32")
    assert (reduced.shapes, reduced.reduce_op, reduced.label) == (((3, 4),), "MAX", "step")
    assert [one.array is x or one.array.base is x for one in reduced.inputs] == [True]
    assert (message.operation, message.peer, message.tag) == (
        "recv" if rank else "send",
        1 - rank,
        7,
    )
    assert broadcast.root == 1
    assert len(broadcast.inputs) == rank
    assert [call.sequence for call, _, _ in seen.ended] == [1, None, 2]
    assert [call.id for call in seen.begun] == [call.id for call, _, _ in seen.ended]
    assert all(error is None and seconds >= 0 for _, error, seconds in seen.ended)


@on_threads(2)
def test_works_groups_blocks_and_process_groups_are_seen(rank: int) -> None:
    seen, mine = Seen(), Seen()
    first = seen.register()
    other = ah.new_group([0, 1])
    assert isinstance(other, ah.Group)
    x = np.ones(4)
    with mine.register(group=other):
        work = ah.all_reduce(x, async_op=True)
        assert work is not None
        work.wait()
        assert seen.ended[-1][0].operation == "all_reduce"  # before the wait returned
        other.all_reduce(x).wait()
        ah.c10d.ProcessGroup(other).barrier().wait()
        both = ah.round_robin([other, ah.new_group([0, 1])])
        ah.barrier(both)
        with ah.coalescing(other):
            ah.all_reduce(x, group=other)
            ah.all_reduce(x.copy(), group=other)
        ah.monitored_barrier(other)
        ah.all_gather_object([None, None], rank, other)
    assert mine.operations == [
        "all_reduce",
        "barrier",
        "all_reduce_coalesced",
        "monitored_barrier",
        "all_gather_object",
    ]
    assert len(seen.begun) == len(seen.ended) == len(mine.begun) + 2
    first.remove()
    first.remove()
    ah.barrier(other)
    assert len(seen.begun) == len(mine.begun) + 2


def test_awaited_calls_are_seen() -> None:
    async def act(seen: Seen) -> list[str]:
        async with ah.aio.connect(backend="threads", timeout=20) as world:
            with seen.register(group=world):
                x = await world.all_reduce(np.ones(2))
                assert x.tolist() == [2.0, 2.0]
                await world.barrier()
            return seen.operations

    found = run_threads(2, init=False)(lambda: asyncio.run(act(Seen())))
    assert found == [["all_reduce", "barrier"]] * 2


@on_threads(2)
def test_a_hook_registered_in_a_block_of_coalescing_sees_the_calls_after_it(rank: int) -> None:
    seen, group = Seen(), ah.default_group()
    with ah.coalescing():
        handle = seen.register()
        ah.all_reduce(np.ones(2))
    assert seen.begun == []
    assert isinstance(group.order, HookedNumbering)
    ah.barrier()
    with ah.coalescing():
        handle.remove()
        ah.all_reduce(np.ones(2))
    ah.barrier()
    assert seen.operations == ["barrier"]
    assert not isinstance(group.order, HookedNumbering)


@on_threads(2)
def test_hooks_nest_in_the_order_of_registration(rank: int) -> None:
    log: list[str] = []

    def note(text: str) -> Any:
        return lambda *call: log.append(text)

    with ah.on_call(note("1"), note("-1")), ah.on_call(note("2")), ah.on_call(after=note("-3")):
        ah.barrier()
    assert log == ["1", "2", "-3", "-1"]


@on_threads(2)
def test_calls_of_a_hook_are_seen_by_none(rank: int) -> None:
    seen: list[str] = []

    def before(call: CallInfo) -> None:
        seen.append(call.operation)
        ah.barrier()

    with ah.on_call(before):
        ah.all_reduce(np.ones(1))
    assert seen == ["all_reduce"]


@pytest.mark.parametrize("is_async", [False, True])
def test_what_a_hook_raises_after_a_call_is_raised_once_outputs_are_written(
    is_async: bool,
) -> None:
    def fail(call: CallInfo, error: BaseException | None, seconds: float) -> None:
        raise LookupError(call.operation)

    def act() -> list[float]:
        x = np.ones(2)

        def call() -> None:
            if (work := ah.all_reduce(x, async_op=is_async)) is not None:
                work.wait()

        with ah.on_call(after=fail), pytest.raises(LookupError, match="all_reduce"):
            call()
        ah.all_reduce(x)
        return x.tolist()

    assert run_threads(2)(act) == [[4.0, 4.0]] * 2


@on_threads(2)
def test_the_error_of_a_call_goes_before_that_of_a_hook(rank: int) -> None:
    seen: list[BaseException | None] = []

    def fail(call: CallInfo, error: BaseException | None, seconds: float) -> None:
        seen.append(error)
        raise LookupError

    with ah.on_call(after=fail), pytest.raises(ah.CollectiveMismatch):
        ah.all_reduce(np.ones(2 + rank))
    assert [type(one) for one in seen] == [ah.CollectiveMismatch]


@on_threads(2)
def test_hooks_that_saw_the_beginning_see_that_a_later_one_refused(rank: int) -> None:
    seen = Seen()

    def refuse(call: CallInfo) -> None:
        raise LookupError

    with seen.register(), ah.on_call(refuse), seen.register(), pytest.raises(LookupError):
        ah.barrier()
    assert len(seen.begun) == 1
    [(_, error, _)] = seen.ended
    assert isinstance(error, LookupError)
    assert ah.default_group().sequence == 0


def test_a_hook_is_refused_without_a_world_or_a_function() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        ah.on_call(print)

    def act() -> None:
        with pytest.raises(TypeError, match="before=, after= or both"):
            ah.on_call()
        with pytest.raises(TypeError, match="after must be a function, not int"):
            ah.on_call(print, 3)  # type: ignore[arg-type]

    run_threads(1)(act)


def test_the_label_of_a_block_is_of_its_task_in_hooks_and_in_errors() -> None:
    async def act() -> list[str | None]:
        labels: list[str | None] = []
        async with ah.aio.connect(backend="threads", timeout=20) as world:
            with ah.on_call(lambda call: labels.append(call.label), group=world):
                with ah.record_comm("step", group=world):
                    await world.barrier()
                    with pytest.raises(ah.CollectiveMismatch, match="step"):
                        await world.all_reduce(np.ones(2 + world.rank))
                await asyncio.create_task(world.barrier())
        return labels

    found = run_threads(2, init=False)(lambda: asyncio.run(act()))
    assert found == [["step", "step", None]] * 2


def test_the_label_of_a_block_is_refused_without_a_world_or_a_text() -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        ah.record_comm("step")

    def act() -> None:
        with pytest.raises(TypeError, match="the name must be a text, not int"):
            ah.record_comm(3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="must not be empty"):
            ah.record_comm("")
        with pytest.raises(LookupError), ah.record_comm("step"):
            raise LookupError
        ah.barrier()
        assert ah.flight_recorder()[-1].label == ""
        assert not isinstance(ah.default_group().order, HookedNumbering)

    run_threads(1)(act)


@pytest.mark.parametrize("value", [np.nan, -np.inf])
def test_not_finite_inputs_are_named_before_a_call(value: float) -> None:
    def act() -> None:
        rank = ah.get_rank()
        x = np.ones((3, 4))
        with ah.hooks.check_finite():
            ah.all_reduce(x)
            ah.all_reduce(np.ones(3, np.int64))
            x[1, 2] = x[2, 3] = value
            with pytest.raises(NotFinite) as raised:
                ah.all_reduce(x)
            error = raised.value
            assert str(error) == (
                f"rank {rank}, before all_reduce of group 'world': x has {value} at index (1, 2)"
            )
            assert (error.rank, error.op, error.argument, error.index) == (
                rank,
                "all_reduce",
                "x",
                6,
            )
            with pytest.raises(NotFinite, match=r"before all_to_all .* inputs\[1\] has .* 6"):
                ah.all_to_all([np.ones((3, 4)), np.ones((3, 4))], [np.ones((3, 4)), x])
            flat = x.reshape(-1)
            with pytest.raises(
                NotFinite, match=r"before reduce_scatter_tensor .* x has .* index 6"
            ):
                ah.reduce_scatter_tensor(np.ones(6), flat)
            with pytest.raises(NotFinite, match=r"before all_gather_v .*: x has"):
                ah.all_gather_v(x)

    run_threads(2)(act)


@on_threads(2)
def test_not_finite_outputs_are_named_after_a_call(rank: int) -> None:
    x = np.array([1e308, 1e308])
    with ah.hooks.check_finite(inputs=False), pytest.raises(NotFinite, match="after all_reduce #1"):
        ah.all_reduce(x)
    assert np.isinf(x).all()
    with ah.hooks.check_finite(outputs=False), np.errstate(over="ignore"):
        ah.all_reduce(np.array([1e308, 1e308]))
    x = np.full(2, np.nan if rank else 1.0)
    with ah.hooks.check_finite(outputs=False):
        ah.broadcast(x, 0)  # what it overwrites may be anything
    assert x.tolist() == [1.0, 1.0]
