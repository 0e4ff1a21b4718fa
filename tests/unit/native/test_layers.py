"""The layers of the native core: folders with includes from layers below only."""

import graphlib
import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[3] / "client" / "allhands" / "native"
BELOW = {
    "python": {"collectives", "p2p", "comm", "hosts", "links", "kernels"},
    "hosts": {"comm", "links", "kernels"},
    "collectives": {"comm", "kernels"},
    "p2p": {"comm", "kernels"},
    "comm": {"kernels"},
    "links": {"kernels"},
    "kernels": set(),
}
"""What each folder may include besides itself."""

FILES = sorted(NATIVE.rglob("*.[ch]"))


def includes(file: Path) -> list[str]:
    """Return the core's headers included by a file."""
    return re.findall(r'^#include "([^"]+)"', file.read_text(), re.MULTILINE)


def test_every_file_is_in_a_layer() -> None:
    assert {file.relative_to(NATIVE).parts[0] for file in FILES} == set(BELOW)
    assert all(len(file.relative_to(NATIVE).parts) == 2 for file in FILES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.relative_to(NATIVE).as_posix())
def test_includes_point_down(file: Path) -> None:
    layer = file.parent.name
    for included in includes(file):
        assert (NATIVE / included).is_file(), f"{included} is named by its path from {NATIVE.name}"
        assert Path(included).parts[0] in {layer, *BELOW[layer]}, included


@pytest.mark.parametrize("layer", [name for name in BELOW if name != "python"])
def test_only_the_shell_knows_of_python(layer: str) -> None:
    for file in sorted((NATIVE / layer).glob("*.[ch]")):
        assert not re.search(r"\bPy[A-Z_]|Python\.h", file.read_text()), file


def test_no_file_is_in_a_circle_of_includes() -> None:
    """A .c and the .h of the same name are one module here."""
    below: dict[str, set[str]] = {}
    for file in FILES:
        module = file.relative_to(NATIVE).with_suffix("").as_posix()
        own = {included.rpartition(".")[0] for included in includes(file)} - {module}
        below.setdefault(module, set()).update(own)
    circle = graphlib.TopologicalSorter(below)
    circle.prepare()  # raises CycleError, which names one


def test_no_file_is_long() -> None:
    lengths = {file.name: file.read_text().count("\n") for file in FILES}
    assert {name: length for name, length in lengths.items() if length > 600} == {}
