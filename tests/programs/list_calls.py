"""Collectives on lists of arrays over shared memory, and the functions that they enter."""

import gc
import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

import allhands as ah
from programs.faults import Faults
from programs.protocol import failure, hear, tell, until
from support.arrays.collective_cases import Case, case

Array = npt.NDArray[Any]

LISTS = ("gather", "scatter", "all_gather", "reduce_scatter", "all_to_all")
WHOLE = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]
PLAIN = (*WHOLE, "float16", "float32", "float64", "complex64", "complex128", ml_dtypes.bfloat16)
OTHER = (">f8", "longdouble")


def list_functions(call: Callable[[], object]) -> list[str]:
    """Make a call; return the Python functions of allhands that it enters."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_globals.get("__name__", "").startswith("allhands."):
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def is_inline(one: Case, **more: Any) -> bool:
    """Make a call; return whether the plain function gave it to the core at once."""
    function = getattr(ah, one.name)
    entered = list_functions(lambda: function(*one.arguments, **more))
    assert one.name in entered
    return "resolve_group" not in entered  # with which the checked way begins


def place(shape: tuple[int, ...]) -> Callable[..., Array]:
    """Return what makes arrays of this shape, if they have as many elements."""

    def make(length: int, dtype: "np.dtype[Any]") -> Array:
        return np.empty(shape if length == np.prod(shape) else length, dtype)

    return make


# ---------------------------------------------------------------- results


def call_on_lists(kwargs: dict[str, Any]) -> None:
    """Make calls of every kind, length and dtype; each goes the way that it should."""
    ah.init_process_group(timeout=30, **kwargs)
    me, n = ah.get_rank(), ah.get_world_size()
    faults = Faults()
    ah.barrier()  # from here on there is a communicator
    for dtype in (*PLAIN, *OTHER):
        for seed, name in enumerate(LISTS):
            if name == "reduce_scatter" and dtype in ("bool", *OTHER):
                continue
            for length in (0, 1, 7, 9_000, 120_000 if dtype == "float32" else 3):
                root = (seed + length) % n
                one = case(name, me, n, length, dtype, root=root, seed=seed)
                faults.note(is_inline(one) != (dtype in PLAIN), name, dtype, length, "way")
                faults.note(one.wrong(), dtype, length)
    tell("done", faults=faults)
    ah.destroy_process_group()


def call_on_other_shapes() -> None:
    """Make calls on arrays of several dimensions, by every operation, and with a label."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    faults = Faults()
    ah.barrier()  # from here on there is a communicator
    for shape in ((), (1,), (2, 3), (3, 2), (2, 0, 5)):
        for name in LISTS:
            outs = [np.zeros(shape) for _ in range(n)]
            ins = [np.full(shape, 10.0 * me + at) for at in range(n)]
            x, root = np.full(shape, float(me)), n - 1
            arguments: dict[str, tuple[Any, ...]] = {
                "gather": (x, outs if me == root else None, root),
                "scatter": (x, ins if me == root else (), root),
                "all_gather": (tuple(outs), x),
                "reduce_scatter": (x, tuple(ins), ah.ReduceOp.MAX),
                "all_to_all": (outs, tuple(ins)),
            }
            wanted = {
                "gather": [np.arange(n) if me == root else np.zeros(n)],
                "scatter": 10.0 * root + me,
                "all_gather": [np.arange(n)],
                "reduce_scatter": 10.0 * (n - 1) + me,
                "all_to_all": [10.0 * np.arange(n) + me],
            }[name]
            one = Case(name, arguments[name], [], [], [])
            label = "named" if shape == (2, 3) else None
            faults.note(not is_inline(one, label=label), name, shape, "way")
            if isinstance(wanted, list):
                right = all((out == want).all() for out, want in zip(outs, wanted[0], strict=True))
            else:
                right = bool((x == wanted).all())
            faults.note(not right, name, shape, x, outs)
    tell("done", faults=faults)
    ah.destroy_process_group()


def mix_ways() -> None:
    """Let one rank's arrays have gaps, so that its calls are checked, and the others' not."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    faults = Faults()
    ah.barrier()  # from here on there is a communicator
    for odd in range(n):
        for length in (1, 6, 9_000):
            for name in LISTS:
                one = case(name, me, n, length, root=odd, seed=length)
                if me == odd:
                    one.arguments = tuple(_stride(given, one) for given in one.arguments)
                faults.note(is_inline(one) != (me != odd), name, odd, length, "way")
                faults.note(one.wrong(), odd, length)
    tell("done", faults=faults)
    ah.destroy_process_group()


def _stride(given: Any, one: Case) -> Any:
    """Return an argument whose arrays that are only read lie with gaps."""
    if isinstance(given, list):
        return [_stride(array, one) for array in given]
    if not any(given is array for array in one.unchanged):
        return given
    wide = np.zeros((len(given), 2), given.dtype)
    wide[:, 0] = given
    return wide[:, 0] if len(given) > 1 else _shift(given)


def _shift(array: Array) -> Array:
    """Return a copy that is not aligned: a single element has no gap."""
    raw = np.zeros(array.nbytes + 1, np.uint8)[1:]
    raw[:] = array.view(np.uint8)
    return raw.view(array.dtype)


def share_memory() -> None:
    """Call on lists whose arrays lie in each other's memory."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    faults = Faults()
    ah.barrier()  # from here on there is a communicator

    def note(name: str, call: Case, right: Callable[[], object]) -> None:
        faults.note(is_inline(call), name, "way")
        faults.note(not right(), name)

    rows = np.arange(4.0 * n).reshape(n, 4) + 100 * me
    ours = rows.copy()
    note(
        "in place",
        Case("all_gather", (list(ours), ours[me]), [], [], []),
        lambda: (ours == [np.arange(4) + 4 * r + 100 * r for r in range(n)]).all(),
    )
    ours = rows.copy()
    note(
        "exchanged in place",
        Case("all_to_all", (list(ours), list(ours)), [], [], []),
        lambda: (ours == [np.arange(4) + 4 * me + 100 * r for r in range(n)]).all(),
    )
    ours = rows.copy()
    note(
        "scattered into its input",
        Case("reduce_scatter", (ours[0], list(ours), ah.ReduceOp.MAX), [], [], []),
        lambda: (ours[0] == np.arange(4) + 4 * me + 100 * (n - 1)).all(),
    )
    whole = np.zeros(4 * n)
    outs = [whole[at : at + 4] for at in range(n)]  # each overlaps the next
    for name, arguments in {
        "all_gather": (outs, np.ones(4)),
        "all_to_all": (outs, [np.ones(4)] * n),
        "gather": (np.ones(4), outs if me == 0 else [], 0),
    }.items():
        if name == "gather" and me > 0:
            continue  # the root alone knows, before anything is sent
        said = failure(lambda: getattr(ah, name)(*arguments))
        faults.note(said["error"] != "InvalidArgument" or whole.any(), name, said)
    same = np.full(4, float(me))
    one = Case("reduce_scatter", (out := np.zeros(4), [same] * n), [], [], [])
    faults.note(not is_inline(one), "an input for several ranks", "way")
    faults.note(not (out == n * (n - 1) / 2).all(), out)
    tell("done", faults=faults)
    ah.destroy_process_group()


def refuse_arguments() -> None:
    """Tell the errors of wrong arguments, before the first call of a group and after it."""
    ah.init_process_group(timeout=30)
    n = ah.get_world_size()
    x, few = np.ones(3), [np.ones(3)] * (n - 1)
    outs = [np.zeros(3) for _ in range(n)]
    frozen = [np.zeros(3) for _ in range(n)]
    frozen[0].flags.writeable = False
    calls: dict[str, Callable[[], object]] = {
        "root": lambda: ah.gather(x, outs, n),
        "no list": lambda: ah.scatter(x, None, ah.get_rank()),
        "too few": lambda: ah.all_gather(few, x),
        "dtype": lambda: ah.all_gather(outs, x.astype("f4")),
        "length": lambda: ah.reduce_scatter(np.ones(4), outs),
        "read-only": lambda: ah.all_to_all(frozen, outs),
        "own block": lambda: ah.all_to_all(outs, [np.ones(2)] * n),
        "no arrays": lambda: ah.all_gather([1.0] * n, x),  # type: ignore[list-item]
        "not a list": lambda: ah.all_to_all(5, 5),  # type: ignore[call-overload]
        "operation": lambda: ah.reduce_scatter(x, outs, ah.ReduceOp.BAND),
        "timeout": lambda: ah.all_gather(outs, x, timeout=-1),
        "list on another rank": lambda: ah.gather(x, outs, (ah.get_rank() + 1) % n),
    }
    for phase in ("checked", "direct"):
        for name, call in calls.items():
            said = failure(call)
            tell("said", phase=phase, name=name, error=said["error"], text=said["text"])
        ah.barrier()  # from here on there is a communicator
    tell("done", sequence=ah.default_group().sequence)
    ah.destroy_process_group()


# ---------------------------------------------------------------- lists that change


def change_lists() -> None:
    """Empty the lists of calls that are under way."""
    ah.init_process_group(timeout=30)
    me, n = ah.get_rank(), ah.get_world_size()
    group = ah.default_group()
    ah.barrier()  # from here on there is a communicator
    for length in (3, 60_000):
        outs = [np.zeros(length) for _ in range(n)]
        kept = list(outs)
        if me == 0:
            work = ah.all_gather(outs, np.zeros(length), async_op=True)
            outs.clear()
            assert isinstance(work, ah.Work)
            work.wait()
        else:
            ah.all_gather(outs, np.full(length, float(me)))
        right = all((one == rank).all() for rank, one in enumerate(kept))
        outs = [np.zeros(length) for _ in range(n)]
        alive: list[bool] = []
        if me == 0:
            held = [weakref.ref(one) for one in outs]
            before = group.sequence

            def empty(
                outs: list[Array] = outs,
                held: list[Any] = held,
                before: int = before,
                alive: list[bool] = alive,
            ) -> None:
                until(lambda: group.sequence > before)
                outs.clear()
                gc.collect()
                alive.extend(ref() is not None for ref in held)
                tell("emptied")

            thread = threading.Thread(target=empty)
            thread.start()
            ah.all_gather(outs, np.zeros(length))
            thread.join()
        else:
            hear()
            ah.all_gather(outs, np.zeros(length))
        tell("ended", right=right, alive=alive)
    ah.destroy_process_group()


# ---------------------------------------------------------------- failures


def differ_in_a_retryable_group() -> None:
    """Bring another length on rank 1, and then the same; failed calls go to the group's queue."""
    ah.init_process_group(timeout=30, retryable=True)
    me, n = ah.get_rank(), ah.get_world_size()
    ah.barrier()  # from here on there is a communicator
    for name in LISTS:
        for length in (6, 40_000):
            one = case(name, me, n, length + (me == 1), root=0)
            before = [array.tobytes() for array in one.written]
            said = failure(lambda: one.run(ah))
            kept = before == [array.tobytes() for array in one.written]
            again = case(name, me, n, length, root=0)
            again.run(ah)
            tell("refused", name=name, kept=kept, wrong=again.wrong(), **said)
    ah.destroy_process_group()
