"""Answers that wait for the log: each leaves when the commits before it are durable."""

from collections import deque

from allhands_server.machine.effects import Answer, Refuse


class HeldAnswers:
    """Answers in their order, with the commits that they wait for."""

    def __init__(self) -> None:
        self._held: deque[tuple[int, Answer | Refuse]] = deque()
        self._made = self._durable = 0
        """Numbers of commits."""

    @property
    def is_settled(self) -> bool:
        """Whether all commits are durable, so that answers may leave at once."""
        return self._made == self._durable

    def note_commit(self) -> None:
        """Note a commit that is not durable yet."""
        self._made += 1

    def hold(self, answer: Answer | Refuse) -> None:
        """Hold an answer until the commits made so far are durable."""
        self._held.append((self._made, answer))

    def note_durable(self, commits: int) -> None:
        """Note the next `commits` commits as durable."""
        self._durable += commits

    def release(self) -> list[Answer | Refuse]:
        """Return the answers whose commits are durable, and hold these no more."""
        released = []
        while self._held and self._held[0][0] <= self._durable:
            released.append(self._held.popleft()[1])
        return released

    def drop(self) -> list[Answer | Refuse]:
        """Give up the commits that are not durable; return the answers held for these."""
        self._made = self._durable
        return self.drop_answers()

    def drop_answers(self) -> list[Answer | Refuse]:
        """Return all answers, and hold these no more; their commits may still become durable."""
        dropped = [answer for _, answer in self._held]
        self._held.clear()
        return dropped
