"""Settings of the site that `make docs` builds from the pages of this folder.

Nothing of the site is loaded from a network when it is read.
"""

import re
import tomllib
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
PROJECT = tomllib.loads((DOCS.parent / "pyproject.toml").read_text(encoding="utf-8"))
REPOSITORY: str = PROJECT["tool"]["hatch"]["metadata"]["hooks"]["custom"]["repository"]
# After `](`, a path that leaves the folder of its page.
UPWARD_LINK = re.compile(r"(?<=\]\()\.\./[\w./-]+")

project = "allhands"
author = PROJECT["project"]["authors"][0]["name"]
copyright = author
version = release = PROJECT["project"]["version"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
highlight_language = "text"
nitpicky = True
suppress_warnings = ["myst.strikethrough"]

myst_heading_anchors = 4

# Between single backticks docstrings have names of the code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
python_display_short_literal_types = True

html_theme = "furo"
html_title = f"allhands {version}"
html_copy_source = False
html_show_sourcelink = False

# `make docs-links EXTERNAL=1` tries other hosts too.
linkcheck_ignore = [r"https?://"]


def setup(app: Sphinx) -> None:
    """Let links to files that are no pages lead to the repository."""
    app.connect("source-read", _link_to_repository)


def _link_to_repository(_app: Sphinx, page: str, source: list[str]) -> None:
    folder = (DOCS / page).parent

    def replace(link: re.Match[str]) -> str:
        file = (folder / link[0]).resolve()
        if file.is_relative_to(DOCS) or not file.exists():
            return link[0]
        return f"{REPOSITORY}/blob/main/{file.relative_to(DOCS.parent)}"

    source[0] = UPWARD_LINK.sub(replace, source[0])
