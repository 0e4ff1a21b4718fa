"""Parts of what a page shows, each with the version at which it changed last. Pure.

A reader remembers one number, the last version it has, whatever the number of parts.
"""

import json
from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = "str | int | float | bool | list[Json] | dict[str, Json] | None"


class Parts:
    """Values by key, kept with their JSON: to compare values costs less than to write them."""

    def __init__(self) -> None:
        self.version = 0
        """Of the last change."""
        self._since = 0
        """Version at which all of it began anew."""
        self._parts: dict[str, tuple[int, Json, str]] = {}

    def begin_anew(self) -> None:
        """Forget all parts; readers are told to do so as well."""
        self.version += 1
        self._since = self.version
        self._parts.clear()

    def put(self, values: Mapping[str, Json]) -> None:
        """Set parts; those that are as they were keep their version."""
        version = self.version + 1
        for key, value in values.items():
            known = self._parts.get(key)
            if known is None or known[1] != value:
                text = json.dumps(value, separators=(",", ":"))
                self._parts[key] = version, value, text
                self.version = version

    def __contains__(self, key: str) -> bool:
        return key in self._parts

    def drop_oldest(self, prefix: str, most: int) -> None:
        """Forget the first of more than `most` parts with a prefix; readers do so by themselves."""
        found = [key for key in self._parts if key.startswith(prefix)]
        for key in found[: max(0, len(found) - most)]:
            del self._parts[key]

    def format_changes(self, seen: int) -> str | None:
        """Return the parts that changed after a version, as a JSON object; None: none did.

        It has `reset`, whether to forget all other parts first, and `parts`.
        """
        if seen == self.version:
            return None
        is_anew = seen < self._since
        changed = ",".join(
            f"{json.dumps(key)}:{text}"
            for key, (version, _, text) in self._parts.items()
            if is_anew or version > seen
        )
        return f'{{"reset":{json.dumps(is_anew)},"parts":{{{changed}}}}}'
