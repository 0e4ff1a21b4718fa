"""Repairs of listings: unambiguous lost lines are restored.

Heads of functions and classes whose bodies are there, indentation, decorators that the tests beside
have, and loops over what a test names and does not make. A pattern finds the place; where it finds
none the listing is another one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

Repair = Callable[[list[str]], list[str]]


class ListingChanged(ValueError):
    """A listing has no match for the pattern of a repair."""


def repaired(letter: str, lines: Sequence[str]) -> list[str]:
    """Return the lines of a listing after the repairs, in order."""
    found = list(lines)
    for repair in _REPAIRS.get(letter, ()):
        found = repair(found)
    return found


# ---------------------------------------------------------------- kinds


def _before(pattern: str, *new: str, after: str | None = None) -> Repair:
    """Insert lines before the first match, after a match of `after`."""

    def repair(lines: list[str]) -> list[str]:
        at = _place(lines, pattern, 0 if after is None else _place(lines, after))
        return [*lines[:at], *new, *lines[at:]]

    return repair


def _moved(first: str, last: str, columns: int) -> Repair:
    """Indent the lines from a match to before the next match of `last`."""

    def repair(lines: list[str]) -> list[str]:
        begin = _place(lines, first)
        end = _place(lines, last, begin + 1)
        return [*lines[:begin], *(_shifted(one, columns) for one in lines[begin:end]), *lines[end:]]

    return repair


def _without(pattern: str) -> Repair:
    """Drop the matching lines."""

    def repair(lines: list[str]) -> list[str]:
        _place(lines, pattern)
        return [line for line in lines if not re.search(pattern, line)]

    return repair


def _replaced(pattern: str, instead: str) -> Repair:
    def repair(lines: list[str]) -> list[str]:
        _place(lines, pattern)
        return [re.sub(pattern, instead, line) for line in lines]

    return repair


def _ungated(name: str) -> Repair:
    """Drop the GPU requirement of a test without GPU calls."""

    def repair(lines: list[str]) -> list[str]:
        at = _place(lines, rf"\bdef {name}\b")
        gate = max(one for one in range(at) if "@skip_if_lt_x_gpu" in lines[one])
        between = "".join(lines[gate + 1 : at])
        if "def " in between:
            raise ListingChanged(f"{name} has no gate for GPUs")
        return [*lines[:gate], *lines[gate + 1 :]]

    return repair


def _closed_once(lines: list[str]) -> list[str]:
    """Drop a second closing of a function's arguments."""
    found: list[str] = []
    for line in lines:
        if not (line.strip() == "):" and found and found[-1].strip() == "):"):
            found.append(line)
    return found


def _place(lines: Sequence[str], pattern: str, begin: int = 0) -> int:
    for at in range(begin, len(lines)):
        if re.search(pattern, lines[at]):
            return at
    raise ListingChanged(
        f"no line of the listing matches {pattern!r}, where a repair has its place"
    )


def _shifted(line: str, columns: int) -> str:
    if columns > 0:
        return " " * columns + line if line.strip() else line
    return line.removeprefix(" " * -columns)


# ---------------------------------------------------------------- what is repaired

_GPUS: Final = "    @skip_if_lt_x_gpu(2)"
_PARAMETRIZED: Final = "@instantiate_parametrized_tests"

_REPAIRS: Final[Mapping[str, Sequence[Repair]]] = MappingProxyType(
    {
        "G": (
            _without(r"^[^\x00-\x7f]"),  # prose between two halves
            _without(r"^`$"),
            _closed_once,
            _moved(r"^@requires_gloo", r"^    def test_broadcast_checks", 4),
            _moved(r"^    pg = c10d\.ProcessGroupGloo\(", r"^    @requires_gloo", 4),
            _before(
                r"^        pg = c10d\.ProcessGroupGloo\(",
                "    def _create_process_group_gloo(self, store, rank, world_size, opts):",
            ),
            _before(
                r"^        super\(\)\.setUp\(\)",
                "    def setUp(self):",
                after=r"def _create_process_group_gloo",
            ),
            _before(
                r"^        opts = c10d\.ProcessGroupGloo\._Options",
                "    def opts(self, threads=2):",
            ),
            _replaced(r"\bdef (test_\w+)\(\):", r"def \1(self):"),
            _before(r"\bdef test_allgather_basics_cuda", _GPUS),
            _before(r"\bdef test_consecutive_comm_work_wait_gpu", _GPUS),
            _ungated("_test_sparse_gradients"),
            _ungated("test_sequence_num_set_default_pg_gloo"),
        ),
        "J": (
            _moved(r"^    class TestJoin", r"^    \):$", -4),
            _closed_once,
        ),
        "F": (
            _before(r"^class TestPgTag", _PARAMETRIZED),
            _moved(r"^        local_tensor = torch\.ones", r"^    @parametrize", 8),
            _before(
                r"^                local_tensor = torch\.ones",
                "        one_dim = dt.DeviceMesh(device, torch.arange(4))",
                "        for mesh in (one_dim, dt.DeviceMesh(device, torch.arange(4).view(2, 2))):",
                "            for dim in range(3):",
                "                output_size = [3, 3, 3]",
                "                output_size[dim] *= mesh.size(0)",
            ),
            _before(
                r"^    def setUp",
                "class TestCollectivesWithNCCL(MultiProcessTestCase):",
                after=r"\bdef test_all_reduce_tracing",
            ),
            _before(
                r"\bdef test_reduce_scatter_tensor\(self, compile",
                '    @parametrize("compile", [True, False])',
            ),
        ),
    }
)
