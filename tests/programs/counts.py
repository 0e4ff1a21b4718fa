"""Counts of calls of methods within a rank."""

from typing import Any


def count_calls(cls: Any, name: str) -> list[int]:
    """Return a list that gets an entry for each call of a method from now on."""
    seen: list[int] = []
    method = getattr(cls, name)

    def count(self: Any, *arguments: Any) -> Any:
        seen.append(1)
        return method(self, *arguments)

    setattr(cls, name, count)
    return seen
