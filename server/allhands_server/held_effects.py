"""Effects that wait for the log: each leaves when the commits before it are durable.

Answers wait, and the notifications on which a member builds: that its world is complete, that its
message was received, that it may go. The others leave at once: a restarted coordinator finds out
about a loss again. Those to one session keep their order.
"""

from collections import Counter, deque
from typing import TypeAlias

from allhands_server.machine.effects import (
    Answer,
    Effect,
    EndSession,
    LeaveAccepted,
    Push,
    Received,
    Refuse,
    WorldFormed,
)

Holdable: TypeAlias = Answer | Refuse | Push | EndSession

_PROMISES = (WorldFormed, LeaveAccepted, Received)


class HeldEffects:
    """Effects in their order, with the commits that they wait for."""

    def __init__(self) -> None:
        self._held: deque[tuple[int, Holdable]] = deque()
        self._sessions: Counter[int] = Counter()
        """Number of held effects by session."""
        self._made = self._durable = 0
        """Numbers of commits."""

    @property
    def is_settled(self) -> bool:
        """Whether all commits are durable."""
        return self._made == self._durable

    def note_commit(self) -> None:
        """Note a commit that is not durable yet."""
        self._made += 1

    def hold(self, effect: Effect, may_answer: bool = True) -> bool:
        """Hold an effect that has to wait for the commits made so far; return whether it has to.

        Answers wait as well while nobody `may_answer`: this daemon may not lead any more.
        """
        if self.is_settled and may_answer:
            return False
        match effect:
            case Answer() | Refuse():
                self._held.append((self._made, effect))
                return True
            case Push(session, notification):
                waits = isinstance(notification, _PROMISES) or session in self._sessions
            case EndSession(session):
                waits = session in self._sessions
            case _:
                return False
        if waits:
            self._sessions[session] += 1
            self._held.append((self._made, effect))
        return waits

    def note_durable(self, commits: int) -> None:
        """Note the next `commits` commits as durable."""
        self._durable += commits

    def release(self) -> list[Holdable]:
        """Return the effects whose commits are durable, and hold these no more."""
        released = []
        while self._held and self._held[0][0] <= self._durable:
            effect = self._held.popleft()[1]
            released.append(effect)
            if isinstance(effect, Push | EndSession):
                self._sessions[effect.session] -= 1
                if not self._sessions[effect.session]:
                    del self._sessions[effect.session]
        return released

    def drop(self) -> list[Holdable]:
        """Give up the commits that are not durable; return the effects held for these."""
        self._made = self._durable
        return self.drop_effects()

    def drop_effects(self) -> list[Holdable]:
        """Return all effects, and hold these no more; their commits may still become durable."""
        dropped = [effect for _, effect in self._held]
        self._held.clear()
        self._sessions.clear()
        return dropped
