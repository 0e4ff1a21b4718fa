"""Settings of the site that `make docs` builds from the pages of this folder.

Nothing of the site is loaded from a network when it is read.
"""

import importlib.util
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
REPOSITORY: str = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
sys.path.insert(0, str(DOCS / "generated"))

# After `](`, a path that leaves the folder of its page.
UPWARD_LINK = re.compile(r"(?<=\]\()\.\./[\w./-]+")
# A name between backticks, with a letter after it.
ENDING = re.compile(r"`([^`]+)`(?=\w)")

project = "allhands"
author = PROJECT["project"]["authors"][0]["name"]
copyright = author
version = release = PROJECT["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
highlight_language = "text"
nitpicky = True
# Names of Python in signatures lead nowhere; links that pages have are checked.
nitpick_ignore_regex = [(r"py:.*", r".*")]
suppress_warnings = ["myst.strikethrough"]

myst_heading_anchors = 4

# Between single backticks docstrings have names of the code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_custom_sections = [
    (name, "Raises") for name in ("Calling it raises", "Every method may raise", "Iteration raises")
]
python_display_short_literal_types = True
# The reference of `allhands.torch` is built without PyTorch, too.
autodoc_mock_imports = [] if importlib.util.find_spec("torch") else ["torch"]

html_theme = "furo"
html_title = f"allhands {version}"
html_copy_source = False
html_show_sourcelink = False

# `make docs-links EXTERNAL=1` tries other hosts too.
linkcheck_ignore = [r"https?://"]


def setup(app: Sphinx) -> None:
    """Connect what changes pages and docstrings before they are parsed."""
    app.connect("source-read", _link_to_repository)
    app.connect("source-read", _fill_in_commands)
    app.connect("autodoc-process-docstring", _prepare_docstring, priority=400)  # before napoleon


def _link_to_repository(_app: Sphinx, page: str, source: list[str]) -> None:
    folder = (DOCS / page).parent

    def replace(link: re.Match[str]) -> str:
        file = (folder / link[0]).resolve()
        if file.is_relative_to(DOCS) or not file.exists():
            return link[0]
        return f"{REPOSITORY}/blob/main/{file.relative_to(DOCS.parent)}"

    source[0] = UPWARD_LINK.sub(replace, source[0])


def _fill_in_commands(_app: Sphinx, page: str, source: list[str]) -> None:
    """Put the commands and their options where the page of commands has a comment for them."""
    if page == "commands":
        from command_reference import describe_commands

        source[0] = source[0].replace("<!-- commands -->", describe_commands())


def _prepare_docstring(
    _app: Sphinx, what: str, _name: str, _object: object, _options: object, lines: list[str]
) -> None:
    """Make restructured text of a docstring: indented lines are code, a `name`s has an end."""
    lines[:] = [ENDING.sub(r"`\1`\\ ", line) for line in _mark_code(lines)]
    if what in ("attribute", "property"):
        lines.insert(0, "")  # else napoleon takes what is before a colon for a type


def _mark_code(lines: list[str]) -> Iterator[str]:
    last, is_code = "", False
    for place, line in enumerate(lines):
        if line and not line.startswith(" "):
            is_code = False
        is_first = line.startswith("    ") and place > 0 and not lines[place - 1]
        # Sections, as Args, have their lines directly below.
        if is_first and not is_code and not last.startswith(" "):
            yield from ("::", "")
            is_code = True
        last = line or last
        yield line
