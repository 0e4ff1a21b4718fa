"""Ends of programs without a destroyed group: the interpreter's exit stays clean."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("exits.py")
CLEAN = (
    "without_a_word",
    "with_calls_in_flight",
    "with_a_group_in_use_by_ddp",
    "at_exit",
    "with_a_thread_in_a_call",
)
OTHERS = ("aborted", "recovered", "with_an_error")
pytestmark = pytest.mark.timeout(300)  # an interpreter's end with PyTorch in it costs half a second
Said = dict[str, list[tuple[int, str]]]


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Exit status and errors of both ranks, by kind of end."""
    folder = tmp_path_factory.mktemp("exits")
    ended = subprocess.run(
        [sys.executable, str(PROGRAM), str(folder), *CLEAN, *OTHERS],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    found: Said = json.loads(ended.stdout)
    return found


@pytest.mark.parametrize("way", CLEAN)
def test_a_program_that_just_ends_ends_well(said: Said, way: str) -> None:
    for status, errors in said[way]:
        assert status == 0, errors
        assert errors == ""


def test_an_aborted_program_ends_with_the_status_that_it_chooses(said: Said) -> None:
    assert [status for status, _ in said["aborted"]] == [3, 3]


def test_a_program_that_has_recovered_ends_well(said: Said) -> None:
    (status, errors), (its, _) = said["recovered"]
    assert (status, its) == (0, -signal.SIGKILL), errors
    assert "terminate called" not in errors
    assert "Traceback" not in errors


def test_an_exception_is_told_to_the_others_with_its_text(said: Said) -> None:
    (status, errors), (its, own) = said["with_an_error"]
    assert (status, its) == (1, 1)
    assert "LookupError: a bug of this rank" in own
    assert "GroupAborted" in errors
    assert "a bug of this rank" in errors
    for text in (errors, own):
        assert "terminate called" not in text
        assert "Fatal Python error" not in text
