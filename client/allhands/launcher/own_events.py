"""Events that the launcher sees itself, such as a stall: told to who relays a job's events."""

from collections.abc import Callable
from typing import TypeAlias

Note: TypeAlias = Callable[[str, str], None]
"""Takes the kind and the text of such an event; from any thread, and at once."""


def ignore_note(kind: str, text: str) -> None:
    """Take an event where there is no sink."""
