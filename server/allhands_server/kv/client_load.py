"""What one connection has under way: replies that its peer has not read, calls that wait."""

from allhands_server.machine.refusals import Refusal, Status
from allhands_server.resource_limits import WITHOUT_LIMIT, ResourceLimits


class LogLoad:
    """Bytes of the calls of all connections that wait for the log; an eighth of the memory."""

    def __init__(self, limits: ResourceLimits) -> None:
        self.nbytes = 0
        self.most = (limits.memory or WITHOUT_LIMIT) // 8


class ClientLoad:
    """Counts of one connection."""

    def __init__(self, limits: ResourceLimits, log_load: LogLoad) -> None:
        self._limits = limits
        self._most = limits.client_bytes or WITHOUT_LIMIT
        self._log_load = log_load
        self.reply_nbytes = 0
        """Of the replies that are not written out."""
        self.held: dict[int, int] = {}
        """Bytes of the calls that wait for the log, by ticket."""
        self._held_nbytes = 0

    @property
    def is_log_full(self) -> bool:
        """Whether this connection has so much waiting for the log that no more is taken."""
        if not self.held:
            return False
        return self._held_nbytes > self._most or self._log_load.nbytes > self._log_load.most

    def add_reply(self, nbytes: int) -> bool:
        """Count a reply; return whether there are too many for a peer that does not read."""
        self.reply_nbytes += nbytes
        return self.reply_nbytes > self._most

    def describe_replies(self) -> str:
        """Say why a connection with too many replies is dropped."""
        return (
            f"{self.reply_nbytes:,} bytes of replies wait for its peer, which does not read: "
            f"{self._limits.client_bytes:,} is the most "
            "(`allhands serve --limit client-bytes=SIZE`)"
        )

    def hold(self, ticket: int, nbytes: int) -> None:
        """Count a call that waits for the log."""
        self.held[ticket] = nbytes
        self._held_nbytes += nbytes
        self._log_load.nbytes += nbytes

    def release(self, ticket: int) -> None:
        """Count a call no more. Idempotent."""
        nbytes = self.held.pop(ticket, 0)
        self._held_nbytes -= nbytes
        self._log_load.nbytes -= nbytes

    def check_waiters(self, pending: int) -> Refusal | None:
        """Return the refusal of a call that would wait beside too many; None: there is room."""
        most, count = self._limits.client_waiters, pending - len(self.held)
        if not most or count <= most:
            return None
        return Refusal(
            Status.RESOURCE_EXHAUSTED,
            f"this connection has {most:,} waiting calls, the most that one has: let fewer wait at "
            "once, or raise it (`allhands serve --limit client-waiters=NUMBER`)",
        )

    def close(self) -> None:
        """Count nothing any more. Idempotent."""
        for ticket in list(self.held):
            self.release(ticket)
