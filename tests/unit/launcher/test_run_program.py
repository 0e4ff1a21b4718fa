"""What `allhands run` is to run, as its arguments name it."""

import os
import sys
from pathlib import Path

import pytest
import typer

from allhands.cli.run_environment import read_variables
from allhands.cli.run_program import find_foreign_kind, imports_mpi4py, parse_program
from allhands.launcher.environment import (
    OWN_VARIABLES,
    JobEndpoint,
    Placement,
    make_rank_environment,
)


def _write(path: Path, text: bytes, mode: int = 0o644) -> Path:
    path.write_bytes(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (b"#!/bin/bash -e\n", "a script for bash"),
        (b"#! /usr/bin/env perl\n", "a script for perl"),
        (b"#!/usr/bin/env -S LANG=C awk -f\n", "a script for awk"),
        (b"\x7fELF\x02\x01", "a compiled program (ELF)"),
        (b"#!/usr/bin/python3.11\n", ""),
        (b"#!/usr/bin/env -S python3 -u\n", ""),
        (b"#!/usr/bin/env -S uv run --script\n", ""),
        (b"print(1)\n", ""),
        (b"", ""),
    ],
)
def test_the_first_line_tells_of_a_script_that_is_no_python(
    tmp_path: Path, first: bytes, kind: str
) -> None:
    assert find_foreign_kind(_write(tmp_path / "program", first)) == kind


def test_a_name_that_ends_in_py_is_python_whatever_its_first_line_says(tmp_path: Path) -> None:
    assert find_foreign_kind(_write(tmp_path / "both.py", b"#!/bin/sh\n")) == ""


@pytest.mark.parametrize(
    ("text", "imports"),
    [
        (b"import sys\nfrom mpi4py import MPI\n", True),
        (b"def main():\n    import mpi4py.MPI\n", True),
        (b"# from mpi4py import MPI\nimport mpi4pyx\n", False),
        (b"from allhands.mpi import MPI\n", False),
    ],
)
def test_an_import_of_mpi4py_is_found_in_a_script(
    tmp_path: Path, text: bytes, imports: bool
) -> None:
    assert imports_mpi4py(_write(tmp_path / "program.py", text)) is imports
    assert not imports_mpi4py(tmp_path)
    assert not imports_mpi4py(tmp_path / "none.py")


def test_an_executable_is_found_on_the_path_or_by_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _write(tmp_path / "prog", b"#!/bin/sh\n", 0o755)
    _write(tmp_path / "data", b"")
    monkeypatch.chdir(tmp_path)
    parsed = parse_program(["./prog", "-n", "x"], is_module=False, is_executable=True)
    assert (parsed.command, parsed.stem) == ((str(program), "-n", "x"), "prog")
    assert not parsed.is_python
    for name, said in (("prog", "./prog"), ("./data", "chmod"), ("none", "PATH"), (".", "folder")):
        with pytest.raises(typer.BadParameter, match=said):
            parse_program([name], is_module=False, is_executable=True)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert parse_program(["prog"], is_module=False, is_executable=True).command == (str(program),)


def test_python_stays_the_default(tmp_path: Path) -> None:
    script = _write(tmp_path / "script", b"")
    parsed = parse_program([str(script)], is_module=False)
    assert parsed.command == (sys.executable, "-u", str(script))
    assert parsed.is_python


def test_a_variable_is_given_or_passed_on() -> None:
    found = read_variables(["A=1=2", "B=", "HOME"], {"HOME": "/root", "A": "0"})
    assert found == {"A": "1=2", "B": "", "HOME": "/root"}
    for option, said in (("NONE", "not set"), ("=1", "NAME"), ("RANK=3", "launcher itself")):
        with pytest.raises(typer.BadParameter, match=said):
            read_variables([option], {})


def test_the_launcher_keeps_its_own_variables_to_itself() -> None:
    endpoint = JobEndpoint("h", 1, "j", "t", "ca", True, "name", "cert", "key")
    made = make_rank_environment(
        os.environ, Placement(1), endpoint, rank=0, launch="x", master_address="a", master_port=1
    )
    added = {name for name, value in made.items() if os.environ.get(name) != value}
    assert added - {"OMP_NUM_THREADS", "PYTHONUNBUFFERED"} <= OWN_VARIABLES
