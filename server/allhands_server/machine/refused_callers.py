"""Callers refused for their token, kept for members of incomplete worlds.

Strangers decide their number, so only MOST addresses are kept at a time.
"""

REMEMBERED_SECONDS = 60.0
"""Time for which joining members are notified of a caller."""
AGAIN_SECONDS = 5.0
"""Time until a caller is announced again."""
MOST = 16
"""Addresses kept at a time."""


class RefusedCallers:
    """Refused callers by address, each with reason and time of its last notification."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, float]] = {}

    def add(self, address: str, why: str, now: float) -> bool:
        """Add a caller; return whether members are to be notified."""
        before = self._known.get(address)
        if before is not None and before[0] == why and now < before[1] + AGAIN_SECONDS:
            return False
        if before is None and len(self._known) >= MOST:
            self._known = {one: self._known[one] for one, _ in self.list_recent(now)}
            if len(self._known) >= MOST:
                return False
        self._known[address] = (why, now)
        return True

    def list_recent(self, now: float) -> list[tuple[str, str]]:
        """Return address and reason of recent callers."""
        return [
            (address, why)
            for address, (why, at) in self._known.items()
            if now < at + REMEMBERED_SECONDS
        ]
