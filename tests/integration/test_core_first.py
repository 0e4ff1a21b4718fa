"""Plain calls that try the native core first: what it takes, what is left to the function."""

import copy
import functools
import gc
import inspect
import pickle
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

import allhands as ah
from allhands.api import collectives, core_first, p2p, ragged, renamed, scans
from allhands.api.core_first import tries_core
from allhands.api.default_world import AnyGroup, default
from allhands.group.non_member import NonMember
from allhands.runtime import native_core
from allhands.testing import on_threads
from programs import core_first as programs
from support.ranks.processes import Job

native: Any = native_core.find()[0]
pytestmark = pytest.mark.skipif(native is None, reason="there is no native core")

MODULES = (collectives, renamed, scans, ragged, p2p)
CALLS = {
    name: value
    for module in MODULES
    for name, value in vars(module).items()
    if native is not None and isinstance(value, native.PlainCall)
}
SUM, MAX = ah.ReduceOp.SUM, ah.ReduceOp.MAX

Said = list[tuple[tuple[object, ...], dict[str, object]]]


@pytest.fixture(autouse=True)
def _world_of_one() -> Iterator[None]:
    ah.init_process_group()
    yield
    if ah.is_initialized():
        ah.destroy_process_group()


def count_calls() -> int:
    return ah.default_group().order.latest_sequence


def open_queue() -> None:
    """Begin a call of the world by its function, which opens the core's queue for those to come."""
    ah.barrier(async_op=True).wait()


def make_reduce(starts: str | None = "x") -> tuple[Any, Said]:
    """Return a call that tries `all_reduce`, and the list of arguments left to its function."""
    said: Said = []

    @tries_core("all_reduce", "x", "op", starts=starts)
    def reduce(
        x: object,
        op: object = SUM,
        group: AnyGroup = None,
        async_op: bool = False,
        *,
        timeout: float | None = None,
        label: str | None = None,
    ) -> str:
        given = (x, op, group, async_op)
        said.append((given, {"timeout": timeout, "label": label}))
        return "by the function"

    return reduce, said


def make_broadcast() -> tuple[Any, Said]:
    said: Said = []

    @tries_core("broadcast", "x", "root", starts="x")
    def broadcast(
        x: object,
        src: int | None = None,
        group: AnyGroup = None,
        async_op: bool = False,
        *,
        group_src: int | None = None,
        timeout: float | None = None,
        label: str | None = None,
    ) -> str:
        said.append(((x, src, group, async_op), {"group_src": group_src}))
        return "by the function"

    return broadcast, said


# ---------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ((), {}),
        ((MAX,), {}),
        ((SUM, None), {}),
        ((SUM, None, False), {}),
        ((), {"op": MAX}),
        ((), {"group": None, "async_op": False}),
        ((), {"timeout": 5.0, "label": "a"}),
    ],
)
def test_a_call_with_plain_arguments_is_made_by_the_core_alone(
    args: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    reduce, said = make_reduce()
    before = count_calls()
    assert reduce(np.ones(3), *args, **keywords) is None
    assert reduce(x=np.ones(3), **keywords) is None
    assert count_calls() == before + 2
    assert said == []


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        ((), {"async_op": True}),
        ((SUM, None, True), {}),
        ((MAX,), {"async_op": True, "timeout": 5.0, "label": "a"}),
    ],
)
def test_a_call_that_is_only_begun_is_begun_by_the_core_alone(
    args: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    reduce, said = make_reduce()
    open_queue()
    before = count_calls()
    x = np.ones(3)
    work = reduce(x, *args, **keywords)
    assert isinstance(work, ah.Work)
    assert (work.operation, work.label) == ("all_reduce", keywords.get("label"))
    assert (work.sequence, work.group) == (before + 1, ah.default_group().name)
    assert work.result() is x
    assert said == []


def test_a_call_is_begun_on_the_group_that_is_given() -> None:
    reduce, said = make_reduce()
    group = ah.new_group([0])
    assert group is not None
    before = count_calls()
    assert reduce(np.ones(3), group=group, async_op=True).group == group.name
    assert (group.order.latest_sequence, count_calls()) == (1, before)
    assert not said


def test_a_call_is_begun_by_its_function_where_the_core_has_no_method_for_that() -> None:
    reduce, said = make_reduce(starts=None)
    open_queue()
    assert reduce(np.ones(3), async_op=True) == "by the function"
    assert reduce(np.ones(3), async_op=False) is None
    assert len(said) == 1


def test_arguments_come_to_the_places_that_they_have_by_name() -> None:
    reduce, _ = make_reduce()
    reduce(np.ones(3, np.int8), op=MAX, label="named", timeout=5.0)
    record = ah.flight_recorder()[-1]
    assert (record.operation, record.label) == ("all_reduce", "named")
    assert "int8" in record.signature
    assert "max" in record.signature.lower()


def test_a_call_on_a_group_that_is_given_is_made_on_that_group() -> None:
    reduce, said = make_reduce()
    group = ah.new_group([0])
    assert group is not None
    before = count_calls()
    reduce(np.ones(3), group=group)
    reduce(np.ones(3), SUM, group)
    assert group.order.latest_sequence == 2
    assert count_calls() == before
    assert said == []


@pytest.mark.parametrize(
    ("args", "keywords"),
    [
        (([1],), {}),  # no array
        ((np.ones(3)[::2],), {}),
        ((np.ones(3), "sum"), {}),
        ((np.ones(3), SUM, NonMember("other")), {}),
        (([1],), {"async_op": True}),
        ((np.ones(3), "sum", None, True), {}),
        ((np.ones(3),), {"async_op": True, "label": 7}),
        ((np.ones(3),), {"async_op": True, "group": NonMember("other")}),
        ((np.ones(3),), {"async_op": 0}),  # not False itself
        ((np.ones(3),), {"async_op": 1}),
        ((np.ones(3),), {"label": 7}),
        ((np.ones(3),), {"timeout": "soon"}),
        ((np.ones(3),), {"group": "world"}),  # has no order
    ],
)
def test_what_the_core_does_not_take_comes_to_the_function_as_it_was(
    args: tuple[Any, ...], keywords: dict[str, Any]
) -> None:
    reduce, said = make_reduce()
    open_queue()
    before = count_calls()
    assert reduce(*args, **keywords) == "by the function"
    assert count_calls() == before
    ((given, named),) = said
    assert given[0] is args[0]
    for at, one in enumerate(args):
        assert given[at] is one
    order = {"op": given[1], "group": given[2], "async_op": given[3], **named}
    for name, one in keywords.items():
        assert order[name] is one


@pytest.mark.parametrize(
    ("args", "keywords", "text"),
    [
        ((), {}, "missing 1 required positional argument: 'x'"),
        ((), {"op": SUM}, "missing 1 required positional argument: 'x'"),
        ((np.ones(1), SUM, None, False, None), {}, "takes from 1 to 4 positional arguments"),
        ((np.ones(1), SUM), {"op": SUM}, "got multiple values for argument 'op'"),
        ((np.ones(1),), {"oper": SUM}, "got an unexpected keyword argument 'oper'"),
    ],
)
def test_wrong_arguments_are_refused_as_by_a_function(
    args: tuple[Any, ...], keywords: dict[str, Any], text: str
) -> None:
    before = count_calls()
    with pytest.raises(TypeError, match=text):
        ah.all_reduce(*args, **keywords)
    assert count_calls() == before


def test_a_name_that_is_another_object_is_the_same_name() -> None:
    x = np.ones(3)
    ah.all_reduce(x, **{"".join(["o", "p"]): MAX})
    record = ah.flight_recorder()[-1]
    assert "max" in record.signature.lower()


def test_a_root_is_a_rank_of_the_world_or_left_to_the_function() -> None:
    broadcast, said = make_broadcast()
    x = np.ones(3)
    for args, keywords in (((), {}), ((0,), {}), ((None,), {}), ((), {"src": 0})):
        assert broadcast(x, *args, **keywords) is None
    assert said == []
    group = ah.default_group()
    for args, keywords in (
        ((9,), {}),
        ((0, group), {}),
        ((), {"group": group}),
        ((), {"group_src": 0}),
    ):
        assert broadcast(x, *args, **keywords) == "by the function"
    assert len(said) == 4


# ---------------------------------------------------------------- all calls


def arguments_of(name: str) -> tuple[Any, ...]:
    x, y = np.array([3.0, 4.0]), np.zeros(2)
    found: dict[str, tuple[Any, ...]] = {
        "barrier": (),
        "reduce": (x, 0, MAX),
        "gather": (x, [y], 0),
        "scatter": (y, [x], 0),
        "all_gather": ([y], x),
        "all_gather_into_tensor": (y, x),
        "all_gather_single": (y, x),
        "reduce_scatter": (y, [x], MAX),
        "reduce_scatter_tensor": (y, x, MAX),
        "reduce_scatter_single": (y, x, MAX),
        "all_to_all": ([y], [x]),
        "all_to_all_single": (y, x),
        "all_to_all_v": ([x],),
        "scatter_v": ([x], 0),
        "reduce_scatter_v": ([x], MAX),
    }
    return found.get(name, (x,))


def test_the_calls_that_try_the_core_are_those_that_it_has() -> None:
    kinds = set(native.KINDS) - {"exchange"}
    second = {"all_gather_single", "reduce_scatter_single"}
    vectors = {"all_gather_v", "gather_v", "all_to_all_v", "scatter_v"}
    assert {*CALLS} == kinds | second | vectors | {"send", "recv"}


@pytest.mark.parametrize("name", sorted({*CALLS} - {"send", "recv"}))
def test_the_core_and_the_function_do_the_same(name: str) -> None:
    by_core, by_function = arguments_of(name), arguments_of(name)
    returned = [CALLS[name](*by_core), CALLS[name].__wrapped__(*by_function)]
    first, second = ah.flight_recorder()[-2:]
    assert (first.operation, first.signature) == (second.operation, second.signature)
    for one, other in zip([*by_core, returned[0]], [*by_function, returned[1]], strict=True):
        np.testing.assert_equal(one, other)


@pytest.mark.parametrize(
    "name",
    sorted(name for name in CALLS if "async_op" in inspect.signature(CALLS[name]).parameters),
)
def test_the_core_and_the_function_begin_the_same(name: str) -> None:
    open_queue()
    by_core, by_function = arguments_of(name), arguments_of(name)
    works = [
        CALLS[name](*by_core, async_op=True),
        CALLS[name].__wrapped__(*by_function, async_op=True),
    ]
    results = [work.result() for work in works]
    first, second = ah.flight_recorder()[-2:]
    assert (first.operation, first.signature) == (second.operation, second.signature)
    for one, other in zip([*by_core, results[0]], [*by_function, results[1]], strict=True):
        np.testing.assert_equal(one, other)
    for given, result in zip((by_core, by_function), results, strict=True):
        assert [result is one for one in given] == [results[0] is one for one in by_core]


def test_messages_of_two_ranks_go_by_the_core_and_by_the_function(job: Job) -> None:
    ranks = job(2, programs.exchange_messages)
    for rank in ranks:
        assert rank.expect("done")["wrong"] == []
    assert [rank.ended() for rank in ranks] == [0, 0]


# ---------------------------------------------------------------- the group of a call


def test_a_call_after_another_world_began_is_made_in_that_one() -> None:
    first = ah.default_group()
    for _ in range(3):
        ah.barrier()
    assert count_calls() == 3
    ah.destroy_process_group()
    with pytest.raises(RuntimeError, match="in no world"):
        ah.barrier()
    ah.init_process_group()
    ah.barrier()
    assert ah.default_group() is not first
    assert count_calls() == 1


def test_hooks_see_the_calls_between_their_coming_and_going() -> None:
    seen: list[str] = []
    ah.barrier()
    with ah.on_call(before=lambda call: seen.append(call.operation)):
        ah.barrier()
        ah.all_reduce(np.ones(3))
        ah.barrier(async_op=True).wait()
    ah.barrier(async_op=True).wait()
    assert seen == ["barrier", "all_reduce", "barrier"]


def test_a_block_collects_the_calls_in_it() -> None:
    x, y = np.ones(3), np.ones(3)
    open_queue()
    before = count_calls()
    ah.barrier()
    with ah.coalescing():
        ah.all_reduce(x)
        ah.all_reduce(y)
        assert count_calls() == before + 1
    ah.barrier()
    with ah.coalescing():
        work = ah.all_reduce(x, async_op=True)
        assert (work.has_ended, count_calls()) == (False, before + 3)
    work.wait()
    assert count_calls() == before + 4


def test_the_record_of_a_block_has_the_shapes_that_its_arrays_had_at_its_end() -> None:
    deep = np.ones(2)
    with ah.coalescing():
        for x in (np.ones((2, 3)), np.ones(()), np.ones((0, 4)), deep):
            ah.all_reduce(x)
        deep.shape = (1,) * 15 + (2,)
    record = ah.flight_recorder()[-1]
    deepest = ",".join(["1"] * 15 + ["2"])
    described = f"float64[2,3],float64[],float64[0,4],float64[{deepest}]"
    assert record.signature == f"all_reduce_coalesced({described}, SUM)"


def test_a_way_that_is_none_of_the_core_is_left_to_the_function() -> None:
    reduce, said = make_reduce()
    order = ah.default_group().order
    with mock.patch.object(order, "direct_calls") as way:
        assert reduce(np.ones(3)) == "by the function"
        assert way.all_reduce.mock_calls == []
        ah.all_reduce(np.ones(3))
        assert way.all_reduce.call_count == 1
    assert len(said) == 1
    assert reduce(np.ones(3)) is None


class Place:
    __slots__ = ("group",)

    def __init__(self, group: object) -> None:
        self.group = group


def test_an_attribute_is_read_as_its_class_says_now() -> None:
    """Of classes that change, as tests change them, slots are not read where they were."""

    class Holder(Place):
        pass

    reduce, said = make_reduce()
    group, other = ah.default_group(), ah.new_group([0])
    assert other is not None
    holder = Holder(group)
    call = native.PlainCall(
        function=reduce.__wrapped__,
        holder=holder,
        on_error=print,
        way="direct_calls",
        method="all_reduce",
        passed=(None, SUM, None, None),
        parameters=(("x", 0, True, None),),
        positional=1,
        root=-1,
        result=0,
    )
    before = count_calls()
    for _ in range(3):
        call(np.ones(3))
    assert count_calls() == before + 3
    Holder.group = property(lambda self: other)  # type: ignore[assignment]
    call(np.ones(3))
    assert (count_calls(), other.order.latest_sequence) == (before + 3, 1)
    del Holder.group
    holder.group = object()
    assert call(np.ones(3)) == "by the function"
    holder.group = group
    call(np.ones(3))
    del holder.group
    assert call(np.ones(3)) == "by the function"
    assert count_calls() == before + 4
    assert len(said) == 2


def test_the_default_group_is_read_from_where_the_package_has_it() -> None:
    reduce, said = make_reduce()
    other = ah.new_group([0])
    assert other is not None
    with mock.patch.object(default, "group", other):
        reduce(np.ones(3))
    assert other.order.latest_sequence == 1
    with mock.patch.object(default, "group", NonMember("no world")):
        assert reduce(np.ones(3)) == "by the function"
    assert len(said) == 1


def test_threads_that_are_ranks_have_their_own_worlds() -> None:
    ah.barrier()
    ah.destroy_process_group()

    @on_threads(3)
    def reduce_ranks(rank: int) -> None:
        x = np.full(2, float(rank))
        for _ in range(3):
            ah.barrier()
        ah.all_reduce(x)
        assert x.tolist() == [3, 3]
        ah.broadcast(x, 2)
        assert ah.default_group().order.latest_sequence == 5

    reduce_ranks()


def test_a_function_is_called_where_a_profiler_or_debugger_looks() -> None:
    reduce, said = make_reduce()
    names: list[str] = []

    def look(frame: Any, event: str, arg: object) -> None:
        if event == "call":
            names.append(frame.f_code.co_name)

    open_queue()
    before = sys.getprofile()
    sys.setprofile(look)
    try:
        reduce(np.ones(3))
        reduce(np.ones(3), async_op=True)
        ah.barrier()
    finally:
        sys.setprofile(before)
    assert len(said) == 2
    assert "barrier" in names


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("backend", ["auto", "socket"])
def test_an_error_of_the_core_ends_in_the_line_of_the_caller(job: Job, backend: str) -> None:
    ranks = job(2, programs.fail_in_the_core)
    told = ranks[0].expect("done")
    for rank in ranks:
        rank.say()
    assert [rank.ended() for rank in ranks] == [0, 0]
    assert {one["error"] for one in told["failed"].values()} == {"CollectiveTimeout"}
    assert {*told["failed"]} == {"barrier", "all_reduce", "recv", "all_gather_v"}
    for name, one in told["failed"].items():
        # Over links the core leaves a call to the function where it takes longer than moments.
        own = one["frames"][2:] if backend == "socket" else []
        assert own in ([], [name])
        assert one["frames"] == ["fail", "<lambda>", *own], name
        assert one["behind"] == [], one


def test_all_frames_of_such_an_error_are_kept_where_that_is_asked_for(job: Job) -> None:
    ranks = job(2, programs.fail_in_the_core, ALLHANDS_TRACEBACKS="full")
    told = ranks[0].expect("done")
    for rank in ranks:
        rank.say()
    assert [rank.ended() for rank in ranks] == [0, 0]
    assert len(told["failed"]["all_reduce"]["frames"]) > 2


def test_ctrl_c_ends_a_call_that_waits_in_the_core(job: Job) -> None:
    ranks = job(2, programs.interrupt_a_barrier)
    told = ranks[0].expect("interrupted")
    assert told["frames"][:2] == ["interrupt_a_barrier", "interrupt"]
    for rank in ranks:
        rank.say()
    assert [rank.ended() for rank in ranks] == [0, 0]


# ---------------------------------------------------------------- as functions are


def test_a_call_is_described_as_its_function() -> None:
    call: Any = ah.broadcast
    function = call.__wrapped__
    assert inspect.isfunction(function)
    assert call.__doc__.startswith("Overwrite `x` on every rank")
    assert (call.__name__, call.__qualname__) == ("broadcast", "broadcast")
    assert call.__module__ == "allhands.api.collectives"
    assert [*inspect.signature(call).parameters][:2] == ["x", "src"]
    assert inspect.signature(call) == inspect.signature(function)
    assert inspect.getdoc(call) == inspect.getdoc(function)
    assert inspect.getsource(call) == inspect.getsource(function)
    assert inspect.isroutine(call)
    assert repr(call) == repr(function)


def test_a_call_is_pickled_and_copied_as_the_one_of_its_name() -> None:
    assert pickle.loads(pickle.dumps(ah.all_reduce)) is ah.all_reduce  # noqa: S301 - just made
    assert copy.copy(ah.all_reduce) is ah.all_reduce
    assert copy.deepcopy(ah.all_reduce) is ah.all_reduce


def test_a_call_can_be_wrapped_bound_and_referred_to() -> None:
    @functools.wraps(ah.all_reduce)
    def around(*args: Any) -> Any:
        return ah.all_reduce(*args)

    class Holder:
        reduce = make_reduce()[0]
        again = staticmethod(ah.all_reduce)

    assert around.__name__ == "all_reduce"
    assert weakref.ref(ah.all_reduce)() is ah.all_reduce
    holder = Holder()
    assert holder.reduce() == "by the function"  # of the object, which is no array
    assert holder.again(np.ones(3)) is None
    assert functools.partial(ah.all_reduce, np.ones(3))() is None


def test_a_call_can_be_patched() -> None:
    with mock.patch("allhands.api.collectives.barrier") as barrier:
        collectives.barrier()
    assert barrier.call_count == 1
    with mock.patch("allhands.api.collectives.barrier", autospec=True):
        assert collectives.barrier(timeout=3) is not None
    assert collectives.barrier is ah.barrier


def test_a_call_that_nobody_has_is_freed_with_what_it_refers_to() -> None:
    reduce, _ = make_reduce()
    reduce.itself = reduce
    gone = weakref.ref(reduce)
    function = weakref.ref(reduce.__wrapped__)
    del reduce
    gc.collect()
    assert gone() is None
    assert function() is None


def test_what_the_core_is_told_wrongly_is_refused() -> None:
    told = {
        "function": print,
        "holder": default,
        "on_error": print,
        "way": "direct_calls",
        "method": "barrier",
        "passed": (None, None),
        "parameters": (("timeout", 0, False, None),),
        "positional": 1,
        "root": -1,
        "result": 0,
    }
    native.PlainCall(**told)
    for wrong in (
        {"way": "comm"},
        {"result": 3},
        {"passed": (None,) * 9},
        {"parameters": (("timeout", 2, False, None),)},
        {"parameters": (("timeout", -4, False, None),)},
        {"parameters": (("timeout", 0, False, None),) * 17},
        {"positional": 2},
        {"root": 1},
        {"value": 2},
        {"value": -2},
    ):
        with pytest.raises(ValueError):
            native.PlainCall(**{**told, **wrong})
    with pytest.raises(TypeError, match="the name of a method"):
        native.PlainCall(**told, start=7)


# ---------------------------------------------------------------- without the native core


def test_without_the_core_a_call_is_its_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core_first, "_core", None)
    reduce, _ = make_reduce()
    assert inspect.isfunction(reduce)
    assert reduce(np.ones(3)) == "by the function"


def test_without_the_core_calls_are_functions_and_made() -> None:
    program = (
        "import sys; sys.modules['allhands._native'] = None\n"
        "import types, numpy as np, allhands as ah\n"
        "assert isinstance(ah.all_reduce, types.FunctionType)\n"
        "ah.init_process_group()\n"
        "x = np.ones(3); ah.all_reduce(x); ah.barrier(); print(x.sum())\n"
        "ah.destroy_process_group()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout == "3.0\n", done.stderr
