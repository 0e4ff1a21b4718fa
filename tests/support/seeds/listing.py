"""Listings: modules of PyTorch's tests as text in documents, beside and outside this project.

A run reads them where they lie, and nothing of them is kept. Of each, the code is mended where the
listing has lost some, and has the name of a backend in the place of others.
"""

import ast
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from support.pytorch_suite.suite_process import ROOT
from support.seeds import repairs

FOLDER: Final = ROOT.parent / "shared" / "seeds"
LISTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "T": "test_multi_threaded_pg",
        "G": "test_c10d_gloo",
        "J": "test_join",
        "F": "test_functional_api",
        "K": "test_fake_pg",
    }
)
_HELPERS: Final = Path(__file__).with_name("missing_helpers.py")
ABSENT: Final = "the listings of PyTorch's tests are not here: those tests are not run"

SUBSTITUTIONS: Final = (
    (r'"(gloo|threaded|fake)"', '"{backend}"'),
    (r"\bc10d\.ProcessGroupGloo\b", "ProcessGroupByOptions"),
    (r"\bbackend\.create_device\(", "create_device("),
    (r"\bc10d\._round_robin_process_groups\b", "round_robin"),
    (r"\bpg_options=self\.opts\(\)", "timeout=timedelta(seconds=50)"),
    (r"\bdist\.HashStore\(\)", "FakeStore()"),
    (r"\bdist\.Backend\.NCCL if torch\.cuda\.is_available\(\) else .*", '"{backend}"'),
    (r"@requires_nccl\(\)", "@requires_gpus()"),
)
"""What another backend than Gloo has in the place of what is Gloo's, or NCCL's, alone."""


def is_there() -> bool:
    return FOLDER.is_dir()


def program(backend: str) -> list[str]:
    """Return the command for requested tests of the listings over a backend."""
    return [sys.executable, "-m", "support.seeds.runner", "--backend", backend]


def code(letter: str) -> list[str]:
    """Return a listing's lines of code, unchanged."""
    lines = (FOLDER / f"{LISTINGS[letter]}.md").read_text().splitlines()
    fences = [at for at, line in enumerate(lines) if line.startswith("```")]
    return lines[fences[0] + 1 : fences[-1]]


def source(letter: str, backend: str = "gloo") -> str:
    """Return the source of a listing's module, for a backend.

    Raises:
        ListingChanged: what is to be mended is not there.
    """
    text = "\n".join(repairs.repaired(letter, code(letter)))
    if backend != "gloo":
        for there, instead in SUBSTITUTIONS:
            text = re.sub(there, instead.format(backend=backend), text)
    return text


def tests(letter: str) -> list[str]:
    """Return the tests of a listing, as `Class.test`, in order."""
    return [
        f"{owner}.{test.name}" for owner, test in _functions(source(letter)) if _is_test(test.name)
    ]


def count(letter: str) -> int:
    """Return the number of tests in an unrepaired listing."""
    return sum(bool(re.match(r"\s*def test_", line)) for line in code(letter))


def all_tests() -> dict[str, bool]:
    """Return all tests, as `G.Class.test`, with whether helpers are missing for each."""
    found: dict[str, bool] = {}
    for letter in LISTINGS:
        resting = _resting(letter)
        found |= {f"{letter}.{test}": test in resting for test in tests(letter)}
    return found


def _resting(letter: str) -> set[str]:
    """Return the tests with calls of helpers absent from the listing and in `missing_helpers`."""
    functions = list(_functions(source(letter)))
    calls: dict[str, set[str]] = {}
    for _, function in functions:
        calls.setdefault(function.name, set()).update(_called(function))
    helpers = {one.name for _, one in _functions(_HELPERS.read_text()) if _is_helper(one.name)}
    return {
        f"{owner}.{test.name}"
        for owner, test in functions
        if _is_test(test.name) and _reached(test.name, calls) & helpers - set(calls)
    }


def _functions(module: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for owner in ast.parse(module).body:
        if isinstance(owner, ast.ClassDef):
            for one in owner.body:
                if isinstance(one, ast.FunctionDef):
                    yield owner.name, one


def _is_test(name: str) -> bool:
    return name.startswith("test")


def _is_helper(name: str) -> bool:
    return name.startswith("_test") or name in ("_simple_hook", "_run_and_verify_hook")


def _called(function: ast.FunctionDef) -> set[str]:
    """Return the names of `self`'s attributes in a method."""
    return {
        node.attr
        for node in ast.walk(function)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    }


def _reached(name: str, calls: Mapping[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = {name}
    while left:
        found |= left
        left = {one for other in left for one in calls.get(other, ())} - found
    return found
