"""Ranks with an executor on their world."""

import os
import signal
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Future
from typing import Any

import numpy as np

import allhands as ah
from allhands.executor import RemoteError, WorldExecutor, open_executor
from programs.protocol import hear, tell


class Strange(Exception):
    """An error of the program's own."""


def square(x: float) -> float:
    return x * x


def norm(x: "np.ndarray[Any, np.dtype[np.float64]]") -> float:
    return float(np.linalg.norm(x))


def fail(name: str) -> None:
    raise ValueError("bad", 3) if name == "built in" else Strange("odd")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hold(number: int) -> int:
    """Wait until the test lets go."""
    tell(what="held", number=number)
    hear()
    return ah.get_rank()


FUNCTIONS: list[Callable[..., object]] = [square, norm, fail, die, hold]


def _catch(future: "Future[Any]") -> BaseException:
    error = future.exception(30)
    assert error is not None
    return error


def submit_much(root: int) -> None:
    ah.init_process_group(timeout=30)
    with open_executor(FUNCTIONS, root=root) as executor:
        assert (executor is None) == (ah.get_rank() != root)
        if executor is not None:
            assert list(executor.map(square, range(500))) == [x * x for x in range(500)]
            assert executor.submit(norm, np.ones(1 << 20)).result(30) == 1024.0
            if ah.get_world_size() > 1:
                _check_errors(executor)
    ah.barrier()  # the world goes on
    tell(what="done")
    ah.destroy_process_group()


def _check_errors(executor: Any) -> None:
    built_in, own = (_catch(executor.submit(fail, name)) for name in ("built in", "own"))
    assert (type(built_in), built_in.args) == (ValueError, ("bad", 3))
    assert "in fail" in built_in.__notes__[0]
    assert (type(own), str(own)) == (RemoteError, "Strange: odd")
    for function, argument in ((len, "x"), (square, object())):
        try:
            executor.submit(function, argument)
        except TypeError as error:
            tell(what="refused", text=str(error))
    executor.shutdown()
    try:
        executor.submit(square, 1)
    except RuntimeError as error:
        tell(what="refused", text=str(error))


def hold_all() -> None:
    """Have all ranks be busy, and cancel what has not begun."""
    ah.init_process_group(timeout=30)
    with open_executor(FUNCTIONS) as executor:
        if executor is not None:
            held = [executor.submit(hold, number) for number in range(4)]
            tell(what="submitted")
            hear()
            executor.shutdown(wait=False, cancel_futures=True)
            tell(what="ended", cancelled=[one.cancelled() for one in held])
            hear()
            tell(what="results", ranks=sorted(one.result(30) for one in held[:2]))
    ah.destroy_process_group()


def lose_one() -> None:
    ah.init_process_group(timeout=30)
    try:
        with open_executor(FUNCTIONS) as executor:
            if executor is not None:
                assert isinstance(executor, WorldExecutor)
                error = _catch(executor.submit(die))
                tell(what="broken", is_broken=isinstance(error, BrokenExecutor), text=str(error))
                try:
                    executor.submit(square, 1)
                except BrokenExecutor as refusal:
                    tell(what="refused", text=str(refusal))
    except ah.AllhandsError as error:
        tell(what="left", text=str(error))


def run_joblib() -> None:
    from joblib import Parallel, delayed

    import allhands.joblib

    ah.init_process_group(timeout=30, allow_pickle=True)
    with open_executor() as executor:
        if executor is not None:
            assert isinstance(executor, WorldExecutor)
            with allhands.joblib.parallel_config(executor):
                found = Parallel()(delayed(square)(x) for x in range(300))
                assert found == [x * x for x in range(300)]
                try:
                    Parallel()(delayed(fail)("built in") for _ in range(3))
                except ValueError as error:
                    tell(what="failed", args=[*error.args])
            allhands.joblib.register()
            from joblib import parallel_config

            with parallel_config("allhands", executor=executor, n_jobs=1):
                assert Parallel()(delayed(square)(x) for x in (2, 3)) == [4, 9]
    ah.destroy_process_group()


def run_joblib_without_pickle() -> None:
    import allhands.joblib

    ah.init_process_group(timeout=30)
    with open_executor(FUNCTIONS) as executor:
        if executor is not None:
            try:
                allhands.joblib.parallel_config(executor)
            except TypeError as error:
                tell(what="refused", text=str(error))
    try:
        with open_executor():
            pass
    except ValueError as error:
        tell(what="refused", text=str(error))
    ah.destroy_process_group()
