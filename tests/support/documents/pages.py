"""The Markdown pages of the project, with their links and anchors."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]

_FENCED = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[ \t]*$", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"^#{1,6} +(.*?) *#*$", re.MULTILINE)
_TARGET = re.compile(r"^\((\S+)\)=$", re.MULTILINE)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_CODE = re.compile(r"`[^`\n]*`")


def list_pages() -> list[Path]:
    """Return the pages of the root and of docs, sorted."""
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def name_page(page: Path) -> str:
    """Return the path of a page in the project."""
    return str(page.relative_to(ROOT))


def list_links(text: str) -> Iterator[tuple[str, str]]:
    """Yield file and anchor of each link to a file of the project; either may be empty."""
    prose = _CODE.sub("", _FENCED.sub("", text))
    for link in _LINK.findall(prose):
        if "://" not in link:
            file, _, anchor = link.partition("#")
            yield file, anchor


def list_anchors(text: str) -> set[str]:
    """Return the anchors of a page: those of headings, as code hosts form them, and its own."""
    prose = _FENCED.sub("", text)
    return {_make_anchor(heading) for heading in _HEADING.findall(prose)} | {
        *_TARGET.findall(prose)
    }


def find_dead_links(page: Path) -> list[str]:
    """Return the links of a page to files or anchors that do not exist."""
    text = page.read_text(encoding="utf-8")
    dead = []
    for file, anchor in list_links(text):
        target = (page.parent / file).resolve() if file else page
        is_there = target.exists()
        if is_there and anchor and target.suffix == ".md":
            is_there = anchor in list_anchors(target.read_text(encoding="utf-8"))
        if not is_there:
            dead.append(f"{file}#{anchor}" if anchor else file)
    return dead


def _make_anchor(heading: str) -> str:
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
