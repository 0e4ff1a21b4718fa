"""The reference has every public name, option and variable."""

import ast
import pydoc
import re
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import allhands as ah
from allhands.cli.main import load_commands
from allhands.config import Limits
from support.documents.commands import list_settings
from support.documents.pages import ROOT

sys.path.insert(0, str(ROOT / "docs/generated"))

REFERENCE = ROOT / "docs/reference"
INTERNAL = {"ALLHANDS_KINDS_H", "ALLHANDS_KIND_CALLS_H", "ALLHANDS_KIND_METHODS_H"}
"""Of the native core's generated headers: no variables."""


def list_documented() -> set[str]:
    """Return the names of the directives in the pages of the reference."""
    pages = "".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    named = re.findall(r"^\.\. auto(?:function|class|exception|module):: (\S+)$", pages, re.M)
    return {*named, *re.findall(r"^#+ `(allhands\.\w+)`", pages, re.M)}


def list_surface(module: str) -> set[str]:
    """Return the public names of a module, as tests/surface has them."""
    folder = ROOT / "tests/surface"
    text = "\n".join((folder / f"{name}.txt").read_text() for name in ("allhands", "torch"))
    [part] = re.findall(rf"^{re.escape(module)}:\n((?:    .*\n|\n)*)", text, re.M)
    return {
        f"{module}.{name}"
        for name in re.findall(r"^    (?:class |async |classmethod )?(\w+)\(?", part, re.M)
    }


def find_variables() -> set[str]:
    """Return the variables that the code names in its texts, but for its documentation."""
    found: set[str] = set()
    for folder in ("client/allhands", "server/allhands_server", "proto/allhands_proto"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found |= set(re.findall(r"\bALLHANDS_[A-Z_]*[A-Z]\b", node.value))
    return found | {f"ALLHANDS_ARENA_{one.name.upper()}" for one in fields(Limits)}


def test_every_public_name_is_in_the_reference() -> None:
    documented = list_documented()
    errors = {f"allhands.{name}" for name in dir(ah) if _is_error(getattr(ah, name))}
    assert "allhands.errors" in documented  # with all of its members
    assert {f"allhands.{name}" for name in ah.__all__} - documented - errors == set()


def _is_error(found: object) -> bool:
    return isinstance(found, type) and issubclass(found, BaseException)


@pytest.mark.parametrize("module", ["aio", "functional", "futures", "hooks", "kv", "torch"])
def test_every_public_name_of_a_module_is_in_the_reference(module: str) -> None:
    names = list_surface(f"allhands.{module}")
    assert len(names) > 2
    values = {f"allhands.functional.{name}" for name in ("GroupLike",)}  # no call: a type
    values |= {"allhands.kv.Operation"}
    assert names - values - list_documented() == set()


def test_what_the_reference_names_exists() -> None:
    names = {name for name in list_documented() if not name.startswith("allhands.torch")}
    assert {name for name in names if pydoc.locate(name) is None} == set()


def test_every_variable_is_on_the_page_of_settings_and_no_other() -> None:
    written = find_variables() - INTERNAL
    assert written - list_settings() == set()
    assert list_settings() - written == set()


def test_options_of_the_page_of_settings_exist() -> None:
    from command_reference import list_options

    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    named = set(re.findall(r"(?<![\w-])--[a-z][\w-]+", page))
    known = {name for one in load_commands().values() for name in list_options(one)}
    assert len(named) > 15
    assert named - known == set()


def test_the_page_of_commands_has_every_command_and_option() -> None:
    from command_reference import describe_commands, list_options

    text = describe_commands()
    for name, command in load_commands().items():
        assert f"## `allhands {name}`\n" in text
        for option in list_options(command):
            assert f"`{option}`" in text
    assert "<!-- commands -->" in Path(ROOT / "docs/commands.md").read_text(encoding="utf-8")
