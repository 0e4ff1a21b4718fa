"""Failures of one rank's calls of every face: the frames in their tracebacks."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

import allhands as ah
from allhands.c10d import AllreduceOptions
from programs.protocol import hear, tell

SECONDS = 0.05
Array = npt.NDArray[np.float64]


def _list_calls(x: Array) -> dict[str, Callable[[], object]]:
    """Return calls that fail, on the rank that makes them alone."""
    group, world = ah.default_group(), ah.process_group()
    return {
        "all_reduce": lambda: ah.all_reduce(x, timeout=SECONDS),
        "wait": lambda: ah.all_reduce(x, async_op=True, timeout=SECONDS).wait(),
        "result": lambda: group.all_reduce(x, timeout=SECONDS).result(),
        "future": lambda: group.all_reduce(x, timeout=SECONDS).get_future().result(),
        "recv": lambda: ah.recv(x, 1, timeout=SECONDS),
        "irecv": lambda: ah.irecv(x, 1, timeout=SECONDS).wait(),
        "all_gather_object": lambda: ah.all_gather_object([None] * 2, 3, timeout=SECONDS),
        "all_gather_v": lambda: ah.all_gather_v(x, timeout=SECONDS),
        "coalesced": lambda: ah.all_reduce_coalesced([x, x], timeout=SECONDS),
        "monitored_barrier": lambda: ah.monitored_barrier(timeout=SECONDS),
        "functional": lambda: ah.functional.all_reduce(x, "sum", timeout=SECONDS),
        "c10d": lambda: world.allreduce([x], AllreduceOptions(timeout=SECONDS)).wait(),
        "store": lambda: ah.store().wait(["no such key"], SECONDS),
        "control": lambda: ah.connect().get("no such key"),
        "not an array": lambda: ah.all_reduce([1]),  # type: ignore[call-overload]
        "no such root": lambda: ah.broadcast(x, 9),
        "no such group": lambda: ah.new_group([9]),
        "in a world": lambda: ah.init_process_group(),
    }


def _list_modules(first: TracebackType | None) -> list[str]:
    frames = traceback.walk_tb(first)
    return [frame.f_globals["__name__"] for frame, _ in frames]


def _list_behind(error: BaseException) -> list[str]:
    """Return the modules of frames of the errors that Python would show before an error."""
    found = []
    shown = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while shown is not None:
        found += _list_modules(shown.__traceback__)
        shown = shown.__cause__ or (None if shown.__suppress_context__ else shown.__context__)
    return found


def fail(call: Callable[[], object]) -> dict[str, Any]:
    try:
        call()
    except Exception as error:
        modules = _list_modules(error.__traceback__)[2:]  # without this one, and the lambda
        return {"error": type(error).__name__, "frames": modules, "behind": _list_behind(error)}
    raise AssertionError("the call did not fail")


def fail_alone() -> None:
    """Make calls on rank 0, for which rank 1 does not come."""
    ah.init_process_group(timeout=30)
    x = np.ones(3)
    ah.barrier()
    calls = _list_calls(x) if ah.get_rank() == 0 else {}
    tell("done", calls={name: fail(call) for name, call in calls.items()})
    hear()
    ah.destroy_process_group()


def fail_awaited() -> None:
    async def await_all() -> None:
        async with ah.aio.connect(timeout=30) as world:
            x = np.ones(3)
            await world.barrier()
            calls: dict[str, Callable[[], Awaitable[object]]] = {
                "all_reduce": lambda: world.all_reduce(x, timeout=SECONDS),
                "recv": lambda: world.recv(x, 1, timeout=SECONDS),
                "all_gather_object": lambda: world.all_gather_object(3, timeout=SECONDS),
                "monitored_barrier": lambda: world.monitored_barrier(SECONDS),
            }
            found = {}
            for name, call in calls.items() if world.rank == 0 else ():
                try:
                    await call()
                except Exception as error:
                    modules = _list_modules(error.__traceback__)[1:]
                    found[name] = {"frames": modules, "behind": _list_behind(error)}
            tell("done", calls=found)
            await asyncio.to_thread(hear)

    asyncio.run(await_all())


def fail_in_function_of_user() -> None:
    """Fail in a function that the engine calls, while another error is handled."""
    ah.init_process_group(timeout=30)

    def combine(a: Any, b: Any) -> Any:
        raise LookupError("no such combination")

    try:
        raise KeyError("handled")
    except KeyError:
        told = fail(lambda: ah.all_reduce(np.ones(3), ah.ReduceOp.user(combine, "bad")))
    tell("done", **told)
    ah.destroy_process_group()
