"""Running of programs that say `from mpi4py import MPI` over allhands."""

import os
import runpy
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

from allhands.mpi import errors, import_hook

USAGE = "usage: python -m allhands.mpi [-c CODE | -m MODULE | SCRIPT | -] [ARGUMENTS ...]"


def run(arguments: Sequence[str]) -> None:
    """Run a script, module (-m) or code (-c; of the input: -) in this process, as `__main__`.

    An error that the program does not handle ends the other ranks too, with its traceback; so does
    an exit status other than 0.

    Raises:
        SystemExit: there is nothing to run, or what the program raises.
    """
    match list(arguments):
        case ["-h" | "--help", *_]:
            print(f"{USAGE}\n\nRun a program of mpi4py over allhands; several ranks: {_LAUNCH}")
        case ["-m", module, *rest]:
            _run(
                lambda: runpy.run_module(module, run_name="__main__", alter_sys=True), module, rest
            )
        case ["-c", code, *rest]:
            _run(lambda: _run_text(code, "<string>"), "-c", rest)
        case ["-", *rest]:
            _run(lambda: _run_text(sys.stdin.read(), "<stdin>"), "-", rest)
        case [script, *rest] if not script.startswith("-"):
            if not Path(script).exists():
                raise SystemExit(f"there is no {script!r} in {Path.cwd()}; a module: -m {script}")
            _find_first(Path(script).resolve().parent)
            _run(lambda: runpy.run_path(script, run_name="__main__"), script, rest)
        case _:
            raise SystemExit(f"{USAGE}\nseveral ranks: {_LAUNCH}")


_LAUNCH = "allhands run --mpi -n 4 SCRIPT"


def _find_first(folder: Path) -> None:
    """Let modules beside the script be found, as Python does unless told not to."""
    if not sys.flags.safe_path:
        sys.path[0] = str(folder)


def _run_text(text: str, name: str) -> None:
    """Run code in a new `__main__`, in which pickle finds what the code defines."""
    main = ModuleType("__main__")
    sys.modules["__main__"] = main
    exec(compile(text, name, "exec", dont_inherit=True), main.__dict__)


def _run(program: Callable[[], object], name: str, arguments: Sequence[str]) -> None:
    import_hook.install()
    threading.excepthook = _end_after_error
    sys.argv[:] = [name, *arguments]
    try:
        program()
    except SystemExit as ended:
        if ended.code not in (None, 0):
            _leave_at_once()
        raise


def _end_after_error(
    arguments: threading.ExceptHookArgs, show: Callable[..., object] = threading.excepthook
) -> None:
    """End this process where a thread does not handle an error of MPI: others may wait for it."""
    show(arguments)
    if isinstance(arguments.exc_value, errors.Exception | NotImplementedError):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _leave_at_once() -> None:
    """Let the end of the process not wait for the other ranks: they are told that it has left."""
    if "allhands.mpi.runtime" not in sys.modules:
        return
    from allhands.mpi.runtime import runtime

    runtime.is_finalized = runtime.is_initialized
