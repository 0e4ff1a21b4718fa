"""Blocks of Python from documents, each run as a program of one rank."""

import ast
import asyncio
import contextlib
import inspect
import io
import os
import sys
from types import CodeType

import numpy as np

import allhands as ah
from allhands.cli.main import main


def run_script(script: str, path: str, folder: str) -> None:
    """Run a script in a folder; its lines are where the file at `path` has them.

    It has `ah`, `np` and `asyncio`, and may await outside of functions.
    """
    os.chdir(folder)
    sys.path.insert(0, folder)
    code = compile(script, path, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names = {"__name__": "__main__", "ah": ah, "np": np, "asyncio": asyncio}
    with contextlib.redirect_stdout(io.StringIO()):
        _run(code, names)


def run_command(folder: str, stdin: str, stdout: str, arguments: list[str]) -> None:
    """Run `allhands ARGUMENTS` in a folder, with files for its standard input and output."""
    os.chdir(folder)
    for descriptor, path, flags in (
        (0, stdin, os.O_RDONLY),
        (1, stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC),
    ):
        opened = os.open(path, flags)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.argv = ["allhands", *arguments]
    main()


def _run(code: CodeType, names: dict[str, object]) -> None:
    if code.co_flags & inspect.CO_COROUTINE:
        asyncio.run(eval(code, names))  # noqa: S307 - of this project's pages
    else:
        exec(code, names)
