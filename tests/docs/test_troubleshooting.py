"""Each text on the page of troubleshooting is one that the code can write."""

import ast
import re

import pytest

from support.documents.pages import ROOT

PAGE = ROOT / "docs/troubleshooting.md"
SOURCES = ("client/allhands", "server/allhands_server", "proto/allhands_proto")
VARIABLE = "\0"
"""In place of what the code fills in."""


def list_texts() -> list[str]:
    """Return the texts in the first column of the page's tables."""
    rows = re.findall(r"^\| (`[^|]*) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return [text for row in rows for text in re.findall(r"`([^`]+)`", row)]


def read_messages() -> str:
    """Return the texts in the code, each on a line of its own."""
    found = []
    for folder in SOURCES:
        for path in (ROOT / folder).rglob("*.py"):
            nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
            docstrings = {node.value for node in nodes if isinstance(node, ast.Expr)}
            for node in nodes:
                if node in docstrings:
                    continue
                match node:
                    case ast.Constant(value=str(text)):
                        # Of the forms with names, such as {said}, as of f-strings.
                        found.append(re.sub(r"\{[\w.:!]*\}|%[sdg]", VARIABLE, text))
                    case ast.JoinedStr(values=parts):
                        found.append("".join(map(_read_part, parts)))
    return "\n".join(found)


def _read_part(part: ast.expr) -> str:
    return part.value if isinstance(part, ast.Constant) else VARIABLE


def is_message(text: str, messages: str) -> bool:
    """Return whether the parts of a text between `...` are in messages."""
    return all(part.strip() in messages for part in text.split("..."))


@pytest.fixture(scope="module")
def messages() -> str:
    return read_messages()


@pytest.mark.parametrize("text", list_texts())
def test_a_text_of_the_page_is_in_the_code(text: str, messages: str) -> None:
    assert is_message(text, messages)


def test_texts_are_found_and_others_are_not(messages: str) -> None:
    assert len(list_texts()) > 30
    assert not is_message("nothing hears there", messages)
    assert not is_message("was not complete within ...: never come:", messages)
