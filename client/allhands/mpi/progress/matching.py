"""Matching of messages with receives: by communicator, sender and tag, in order. Pure."""

from typing import Generic, Protocol, TypeVar

from allhands.mpi.constants import ANY_SOURCE, ANY_TAG


class Envelope(Protocol):
    """What a message says of itself."""

    source: int
    """Rank of the sender in its group of the communicator."""
    tag: int


class PostedReceive(Protocol):
    """What a receive asks for."""

    wanted_source: int
    """ANY_SOURCE: of whoever sends."""
    wanted_tag: int
    """ANY_TAG: of whatever tag."""


def fits(wanted_source: int, wanted_tag: int, envelope: Envelope) -> bool:
    """Say whether a receive is for that message."""
    return (wanted_source in (ANY_SOURCE, envelope.source)) and (
        wanted_tag in (ANY_TAG, envelope.tag)
    )


E = TypeVar("E", bound=Envelope)
R = TypeVar("R", bound=PostedReceive)


class MatchTable(Generic[E, R]):
    """Receives without a message, and messages without a receive, by communicator."""

    def __init__(self) -> None:
        self._posted: dict[int, list[R]] = {}
        self._unexpected: dict[int, list[E]] = {}
        self.posted_count = 0

    def match_message(self, context: int, envelope: E) -> R | None:
        """Take the first receive posted that fits a message; None: the message is kept."""
        posted = self._posted.get(context)
        if posted:
            for at, receive in enumerate(posted):
                if fits(receive.wanted_source, receive.wanted_tag, envelope):
                    del posted[at]
                    self.posted_count -= 1
                    return receive
        self._unexpected.setdefault(context, []).append(envelope)
        return None

    def match_receive(self, context: int, receive: R) -> E | None:
        """Take the first message that fits a receive; None: the receive is posted."""
        envelope = self.take(context, receive.wanted_source, receive.wanted_tag)
        if envelope is None:
            self._posted.setdefault(context, []).append(receive)
            self.posted_count += 1
        return envelope

    def has_unexpected(self, context: int) -> bool:
        """Say whether there is a message without a receive."""
        return bool(self._unexpected.get(context))

    def find(self, context: int, source: int, tag: int) -> E | None:
        """Return the first message that fits, and leave it."""
        for envelope in self._unexpected.get(context, ()):
            if fits(source, tag, envelope):
                return envelope
        return None

    def take(self, context: int, source: int, tag: int) -> E | None:
        """Take the first message that fits."""
        unexpected = self._unexpected.get(context)
        if unexpected:
            for at, envelope in enumerate(unexpected):
                if fits(source, tag, envelope):
                    del unexpected[at]
                    return envelope
        return None

    def withdraw(self, context: int, receive: R) -> bool:
        """Take back a posted receive; False: it has its message."""
        posted = self._posted.get(context, [])
        for at, one in enumerate(posted):
            if one is receive:
                del posted[at]
                self.posted_count -= 1
                return True
        return False

    def is_first(self, context: int, receive: R) -> bool:
        """Say whether a receive is the first of its context that is posted."""
        posted = self._posted.get(context)
        return bool(posted) and posted[0] is receive  # type: ignore[index]

    def restore(self, context: int, receive: R) -> E | None:
        """Post a receive again that was withdrawn, before all others; or take what fits it."""
        envelope = self.take(context, receive.wanted_source, receive.wanted_tag)
        if envelope is None:
            self._posted.setdefault(context, []).insert(0, receive)
            self.posted_count += 1
        return envelope

    def forget(self, context: int) -> None:
        """Forget everything of a communicator."""
        self.posted_count -= len(self._posted.pop(context, ()))
        self._unexpected.pop(context, None)
