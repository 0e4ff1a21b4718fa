"""The pages for users of other libraries name calls, commands and variables that exist."""

import re
from pathlib import Path

import pytest

import allhands as ah
from allhands import kv
from allhands.coordinator.client import Control
from support.documents.commands import find_mistakes, list_settings, split_commands
from support.documents.pages import ROOT, name_page

PAGES = sorted((ROOT / "docs").glob("from_*.md"))
OWNERS = {"ah": ah, "c": Control, "kv": kv}
"""What the pages' names stand for."""


def list_ours(text: str) -> list[str]:
    """Return the code in the columns of ours: of each row the second cell."""
    rows = re.findall(r"^\|[^|]*\|([^|]*)\|$", text, re.MULTILINE)
    return [code for row in rows for code in re.findall(r"`([^`]+)`", row)]


def find_missing(text: str) -> list[str]:
    """Return the names that are none of ours, and commands with mistakes."""
    missing = []
    for path in re.findall(r"\b(?:ah|c|kv)(?:\.\w+)+", text):
        owner, *names = path.split(".")
        found: object = OWNERS[owner]
        for name in names:
            found = getattr(found, name, None)
        if found is None:
            missing.append(path)
    for code in list_ours(text):
        if code.startswith("allhands "):
            missing += [wrong for one in split_commands(code) for wrong in find_mistakes(one)]
    missing += set(re.findall(r"\bALLHANDS_[A-Z_]+\b", text)) - list_settings()
    return missing


@pytest.mark.parametrize("page", PAGES, ids=name_page)
def test_a_page_names_what_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert len(list_ours(text)) > 10
    assert find_missing(text) == []


def test_a_name_that_is_none_is_found() -> None:
    text = (
        "| a | b |\n|---|---|\n| `x` | `ah.al_reduce`, `allhands kv putt a b`, `ALLHANDS_URI` |\n"
    )
    assert find_missing(text) == [
        "ah.al_reduce",
        "allhands kv has no command putt",
        "ALLHANDS_URI",
    ]
