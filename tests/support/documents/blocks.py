"""Code blocks of the documents' pages, with the hidden comments that say how each is run.

An HTML comment directly before a block has options for it, and below these Python that runs first;
one directly after a block of Python has Python that runs last:

    <!-- run: ranks=2 daemon
    x = np.ones(4)
    -->
    ```python
    ah.all_reduce(x)
    ```
    <!-- check:
    assert x[0] == 2
    -->

A block is between fences and names its kind, or it is indented and begins with a prompt, `$ `.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from support.documents.pages import name_page

OPTIONS = ("ranks", "daemon", "torch", "file", "session")
"""Words of a comment before a block:

ranks=N     run on a world of N processes
daemon      run while a daemon serves 127.0.0.1:7070, as the block says
torch       needs PyTorch
file=NAME   also a file of that name, for the sessions of the page
session     run the commands, and compare what they print
session=S   the same, together with the blocks of the page that are of one session S
"""

_PROMPT = re.compile(r"\w*\$ ")
_COMMENT = re.compile(r"<!-- (run|check):([^\n]*)\n?(.*?)-->\s*$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines of a page."""

    line: int
    """Of the first of them, from 1 on."""
    text: str


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    page: str
    """Path in the project."""
    line: int
    """Of its fence, or of its first line."""
    kind: str
    code: Piece
    options: dict[str, str] = field(default_factory=dict)
    before: Piece | None = None
    """Python that runs before it."""
    after: Piece | None = None
    """Python that runs after it."""

    @property
    def name(self) -> str:
        """Page and line."""
        return f"{self.page}:{self.line}"

    @property
    def script(self) -> str:
        """The Python of the block and of its comments, each line where the page has it."""
        lines: list[str] = []
        for piece in (self.before, self.code, self.after):
            if piece is not None:
                lines += [""] * (piece.line - 1 - len(lines))
                lines += piece.text.splitlines()
        return "\n".join(lines) + "\n"


def read_blocks(page: Path) -> list[Block]:
    """Return the code blocks of a page, in its order.

    Raises:
        ValueError: a block without a kind; a comment with unknown words, or without a block.
    """
    return find_blocks(page.read_text(encoding="utf-8"), name_page(page))


def find_blocks(text: str, page: str) -> list[Block]:
    """Return the code blocks of a page's text; see `read_blocks`."""
    tokens = MarkdownIt("commonmark").parse(text)
    comments = {at: made for at, token in enumerate(tokens) if (made := _read_comment(token))}
    blocks = []
    for at, token in enumerate(tokens):
        if token.type in ("fence", "code_block"):
            before = comments.pop(at - 1, None) if _is_comment(comments, at - 1, "run") else None
            after = comments.pop(at + 1, None) if _is_comment(comments, at + 1, "check") else None
            blocks.append(_make_block(token, page, before, after))
    for at in comments:
        raise ValueError(f"{page}:{_get_line(tokens[at])}: no block is beside this comment")
    return blocks


@dataclass(frozen=True, slots=True)
class _Comment:
    what: str
    words: Sequence[str]
    code: Piece | None


def _read_comment(token: Token) -> _Comment | None:
    match = _COMMENT.match(token.content) if token.type == "html_block" else None
    if match is None:
        return None
    code = Piece(_get_line(token) + 1, match[3]) if match[3].strip() else None
    return _Comment(match[1], match[2].split(), code)


def _is_comment(comments: dict[int, _Comment], at: int, what: str) -> bool:
    return at in comments and comments[at].what == what


def _make_block(token: Token, page: str, before: _Comment | None, after: _Comment | None) -> Block:
    line = _get_line(token)
    options = dict(
        _split_option(word, f"{page}:{line}") for word in (before.words if before else ())
    )
    if token.type == "fence":
        kind, code = token.info.strip(), Piece(line + 1, token.content)
    else:
        kind = "console" if _PROMPT.match(token.content) else ""
        code = Piece(line, token.content)
    if not kind:
        raise ValueError(
            f"{page}:{line}: this block has no kind: put it between fences that name one, such as "
            "```text, ```sh or ```python"
        )
    hidden, last = (one.code if one else None for one in (before, after))
    return Block(page, line, kind, code, options, hidden, last)


def _split_option(word: str, place: str) -> tuple[str, str]:
    name, _, value = word.partition("=")
    if name not in OPTIONS:
        raise ValueError(f"{place}: {word!r} is none of the options {', '.join(OPTIONS)}")
    return name, value


def _get_line(token: Token) -> int:
    assert token.map is not None  # blocks have one, unlike what is within a line
    return token.map[0] + 1
