"""Units of systemd as text, with the specifiers that ours use."""

import re
import shlex
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Unit:
    """Settings of a unit in order; one that is repeated has several values."""

    settings: tuple[tuple[str, str], ...]

    def list_values(self, name: str) -> list[str]:
        return [value for one, value in self.settings if one == name]

    def get(self, name: str) -> str:
        """Return the last value of a setting.

        Raises:
            KeyError: the unit does not have it.
        """
        return dict(self.settings)[name]

    def get_command(self, specifiers: Mapping[str, str]) -> list[str]:
        """Return the words of ExecStart; `specifiers` are by letter."""
        return [_resolve(word, specifiers) for word in shlex.split(self.get("ExecStart"))]

    def get_environment(self, specifiers: Mapping[str, str]) -> dict[str, str]:
        words = (word for text in self.list_values("Environment") for word in shlex.split(text))
        pairs = (_resolve(word, specifiers).partition("=") for word in words)
        return {name: value for name, _, value in pairs}


def read_unit(path: Path) -> Unit:
    """Read a unit without continued lines."""
    lines = (line.strip() for line in path.read_text().splitlines())
    pairs = (line.partition("=") for line in lines if line and line[0] not in "#;[")
    return Unit(tuple((name, value) for name, _, value in pairs))


def _resolve(word: str, specifiers: Mapping[str, str]) -> str:
    return re.sub(r"%(.)", lambda found: specifiers[found[1]], word)


def list_allowed_calls(filters: Iterable[str]) -> set[str]:
    """Return the system calls that SystemCallFilter= lets through, by name."""
    allowed: set[str] = set()
    for text in filters:
        named = set().union(*(_expand(one) for one in text.lstrip("~").split()))
        allowed = allowed - named if text.startswith("~") else allowed | named
    return allowed


def _expand(name: str) -> set[str]:
    """Return the calls of a set, those of the sets inside among them."""
    if not name.startswith("@"):
        return {name}
    command = ["systemd-analyze", "syscall-filter", name]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    inside = [line.strip() for line in printed.splitlines()[1:]]
    return set().union(*(_expand(one) for one in inside if one and one[0] != "#"))
