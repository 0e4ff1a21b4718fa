"""Mutation: one behaviour of the package broken, for the tests of a parity row to notice."""

from dataclasses import dataclass
from pathlib import Path

from support.parity import rows
from support.parity.rows import NATIVE

ROOT = Path(__file__).parent.parent.parent
SOURCES = Path("client", "allhands")
"""Folder of the files, in the repository and in a copy of it."""


class DoesNotFit(ValueError):
    """The text to replace does not occur exactly once."""


@dataclass(frozen=True)
class Mutation:
    """A text of a file with the replacement."""

    row: int
    """Of the parity table."""
    breaks: str
    """Words for the table: what is wrong then."""
    file: str
    """Below `SOURCES`."""
    old: str
    new: str
    face: str = NATIVE
    """Whose tests have to notice."""

    @property
    def path(self) -> Path:
        return SOURCES / self.file

    @property
    def is_of_c(self) -> bool:
        return self.path.suffix in (".c", ".h")

    @property
    def tests(self) -> list[str]:
        """The tests of the row, from the root of the repository."""
        return [f"tests/{one}" for one in rows.proofs(self.face).get(self.row, [])]

    def applied(self, text: str) -> str:
        """Return the file's text after the replacement.

        Raises:
            DoesNotFit: as it says.
        """
        if (times := text.count(self.old)) != 1:
            raise DoesNotFit(
                f"P{self.row}, {self.breaks}: {self.path} has this {times} times, and a mutation "
                f"replaces what is there once: {self.old!r}"
            )
        return text.replace(self.old, self.new)
