"""Documents name only existing files of the project."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = (ROOT, ROOT / "client/allhands")


def list_named_paths(text: str) -> list[str]:
    """Return the texts between backticks in the form of paths with a folder."""
    return re.findall(r"`((?:S:)?[\w.]+(?:/[\w.]+)*(?:/|\.(?:py|c|h|proto|md)))`", text)


@pytest.mark.parametrize("document", ["docs/architecture.md", "CONTRIBUTING.md", "CONVENTIONS.md"])
def test_files_that_a_document_names_exist(document: str) -> None:
    named = list_named_paths((ROOT / document).read_text())
    places = [*PLACES, ROOT / "tests", ROOT / "server/allhands_server"]
    missing = [
        path
        for path in named
        if not any((place / path.removeprefix("S:")).exists() for place in places)
    ]
    assert missing == []


def test_a_file_that_is_not_there_is_found_out() -> None:
    assert list_named_paths("see `engine/nowhere.py`, `S:rpc/` and `plain` or `a b.py`") == [
        "engine/nowhere.py",
        "S:rpc/",
    ]
