"""Program of `allhands run`: the command of each rank, from the command line's arguments."""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from allhands_proto.quick_dataclass import dataclass

_PYTHON = sys.executable, "-u"
_INTERPRETER = re.compile(r"python(\d+(\.\d+)?t?)?")
_PYTHON_SUFFIXES = (".py", ".pyc", ".pyz")
_RUNNERS_OF_PYTHON = ("uv", "pipx", "pypy", "pypy3", "ipython", "ipython3", "conda", "hatch")
"""Programs in the first line of scripts that are Python."""
_HINT = "SCRIPT"
_FIRST_LINE_BYTES = 256
_IMPORT_OF_MPI = re.compile(rb"^[ \t]*(from|import)[ \t]+mpi4py\b", re.MULTILINE)
_SCANNED_BYTES = 64 << 10
"""Of a script, in which its imports are looked for."""


@dataclass(frozen=True, slots=True)
class Program:
    """The command of each rank."""

    command: tuple[str, ...]
    """Path of the executable, then its arguments."""
    stem: str
    """For the job's name."""
    is_python: bool = True
    script: str = ""
    """Path of the script, where it is to run as it is; empty: a module, or another program."""


def parse_program(
    program: Sequence[str] | None,
    *,
    is_module: bool,
    is_executable: bool = False,
    is_mpi: bool = False,
) -> Program:
    """Return the command of each rank.

    Raises:
        typer.BadParameter: there is nothing to run.
    """
    if not program:
        raise typer.BadParameter(
            "say what to run, as in: allhands run -n 4 script.py", param_hint=_HINT
        )
    script, *arguments = program
    if is_mpi:
        return _parse_mpi_program(script, arguments, is_module, is_executable)
    if is_executable:
        if is_module:
            raise typer.BadParameter("a module is Python: give one of the two", param_hint="-m")
        return Program((_find_executable(script), *arguments), Path(script).stem, is_python=False)
    if is_module:
        return Program((*_PYTHON, "-m", script, *arguments), script)
    if (interpreter := _find_interpreter(script)) is not None:
        if not arguments:
            raise typer.BadParameter(
                f"say what {script!r} is to run, as in: allhands run -n 4 {script} script.py",
                param_hint=_HINT,
            )
        named = next((one for one in arguments if one.endswith(".py")), script)
        return Program((interpreter, "-u", *arguments), Path(named).stem)
    if script.startswith("-"):
        raise typer.BadParameter(
            f"{script!r} is no script; options of allhands stand before the script, "
            "options of the script after it",
            param_hint=_HINT,
        )
    _check_script(script)
    return Program((*_PYTHON, script, *arguments), Path(script).stem, script=script)


def _parse_mpi_program(
    script: str, arguments: Sequence[str], is_module: bool, is_executable: bool
) -> Program:
    """Return the command that runs a program of mpi4py over allhands."""
    if is_executable:
        raise typer.BadParameter(
            "programs of mpi4py are Python: give one of --mpi and --no-python", param_hint="--mpi"
        )
    if _find_interpreter(script) is not None:
        raise typer.BadParameter(
            f"{script!r} is an interpreter: name the script of mpi4py alone", param_hint=_HINT
        )
    runner = (*_PYTHON, "-m", "allhands.mpi")
    if is_module:
        return Program((*runner, "-m", script, *arguments), script)
    _check_script(script)
    return Program((*runner, script, *arguments), Path(script).stem)


def _find_interpreter(name: str) -> str | None:
    """Return the path of the Python named by a first argument; None: a script."""
    if not _INTERPRETER.fullmatch(Path(name).name):
        return None
    found = shutil.which(name)
    # As it is called, not where links lead: by that Python finds its virtual environment.
    return None if found is None else os.path.abspath(found)


def _find_executable(name: str) -> str:
    """Return the path of a program, found as a shell finds it.

    Raises:
        typer.BadParameter: there is none, or it must not be executed.
    """
    if (found := shutil.which(name)) is not None:
        return os.path.abspath(found)
    if Path(name).is_dir():
        raise typer.BadParameter(f"{name!r} is a folder", param_hint=_HINT)
    if not Path(name).exists():
        raise typer.BadParameter(
            f"there is no program {name!r} on the PATH, nor a file of that name in {Path.cwd()}",
            param_hint=_HINT,
        )
    if os.access(name, os.X_OK):
        raise typer.BadParameter(
            f"there is no {name!r} on the PATH; for the one in {Path.cwd()} write ./{name}",
            param_hint=_HINT,
        )
    raise typer.BadParameter(
        f"{name!r} is not executable: chmod +x {name}; a Python script needs no --no-python",
        param_hint=_HINT,
    )


def _check_script(script: str) -> None:
    """Check that a script exists and may be Python.

    Raises:
        typer.BadParameter: it does not, or is another program.
    """
    if not Path(script).exists():
        elsewhere = shutil.which(script)
        hint = f"; to run the program {elsewhere}, give --no-python" if elsewhere else ""
        raise typer.BadParameter(
            f"there is no {script!r} in {Path.cwd()}; to run a module, give -m{hint}",
            param_hint=_HINT,
        )
    if kind := find_foreign_kind(Path(script)):
        raise typer.BadParameter(
            f"{script!r} is {kind}, no Python script: give --no-python to run it as it is, as in: "
            f"allhands run -n 4 --no-python {script}",
            param_hint=_HINT,
        )


def find_foreign_kind(path: Path) -> str:
    """Return the kind of a file that is evidently no Python; empty: it may be Python."""
    if path.is_dir() or path.suffix in _PYTHON_SUFFIXES:
        return ""  # a folder with __main__.py runs, too
    try:
        with path.open("rb") as file:
            first = file.readline(_FIRST_LINE_BYTES)
    except OSError:  # Python will say so
        return ""
    if first.startswith(b"\x7fELF"):
        return "a compiled program (ELF)"
    if not first.startswith(b"#!"):
        return ""
    words = first[2:].decode(errors="replace").split()
    names = [Path(word).name for word in words if not word.startswith("-") and "=" not in word]
    if names[:1] == ["env"]:
        names = names[1:]
    if not names or _INTERPRETER.fullmatch(names[0]) or names[0] in _RUNNERS_OF_PYTHON:
        return ""
    return f"a script for {names[0]}"


def imports_mpi4py(script: Path) -> bool:
    """Return whether a script says that it imports mpi4py, within its first 64 KiB."""
    try:
        with script.open("rb") as file:
            return _IMPORT_OF_MPI.search(file.read(_SCANNED_BYTES)) is not None
    except OSError:  # Python will say so, or it is a folder
        return False
