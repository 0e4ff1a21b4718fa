"""Leadership among daemons with one log, as a pure machine: events and the time in, actions out.

Who appended the last `Term` leads. The leader appends at least every quarter of the timeout, and
answers only within half of it after the start of its last good append. A follower that has heard of
no new frame for the whole timeout, on its own clock, appends the next term. So a leader has stopped
answering before another one can begin, though no two clocks are compared: they have to run at like
speed, not to agree. What a deposed leader appends is refused by the log, as the slot is taken.
"""

import enum
from typing import TypeAlias

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.fast_dataclass import fast_dataclass

TIMEOUT = 2.0
"""Seconds without a new frame after which a follower tries to lead."""
_LEASE_PART = 0.5
_APPEND_PART = 0.25
_PATIENCE = 1.0
"""Timeouts beyond the lease during which requests wait for the log, before they are refused."""


@fast_dataclass
class Term:
    """Change of the log that makes a daemon its leader."""

    number: int
    daemon: str
    """Empty: the leader has given up its leadership."""
    address: str
    """Where clients reach it."""


class Role(enum.Enum):
    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    """The append of its own term is under way."""
    LEADER = "leader"


# ---------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class LogOpened:
    """The log has been read up to its end."""


@dataclass(frozen=True, slots=True)
class FrameTailed:
    """A frame of another daemon has come."""

    number: int
    """Of its term."""


@dataclass(frozen=True, slots=True)
class TermTailed:
    """A term of another daemon has come, or stands in the log."""

    term: Term


@dataclass(frozen=True, slots=True)
class AppendBegun:
    """The first attempt to append a frame begins."""


@dataclass(frozen=True, slots=True)
class AppendEnded:
    """The frame is in the log."""


@dataclass(frozen=True, slots=True)
class AppendLost:
    """The slot of the frame is taken by another daemon."""

    term: Term | None
    """The term that stands there, if it is known."""


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


LeadershipEvent: TypeAlias = (
    LogOpened | FrameTailed | TermTailed | AppendBegun | AppendEnded | AppendLost | Tick
)

# ---------------------------------------------------------------- actions


@dataclass(frozen=True, slots=True)
class AppendTerm:
    """Append this term behind the last frame, until the slot is this daemon's or another's."""

    term: Term


@dataclass(frozen=True, slots=True)
class AppendEmpty:
    """Append a frame, an empty one if there is nothing to write."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Open the state for requests."""


@dataclass(frozen=True, slots=True)
class Follow:
    """Send clients to the leader; read the log anew where this daemon has led."""

    leader: Term | None
    """None: nobody leads."""
    has_led: bool


@dataclass(frozen=True, slots=True)
class RefuseRequests:
    """Refuse the requests that wait for the log, and those that come."""


@dataclass(frozen=True, slots=True)
class TakeRequests:
    """Take requests again."""


Action: TypeAlias = AppendTerm | AppendEmpty | Lead | Follow | RefuseRequests | TakeRequests


class Leadership:
    """What one daemon knows of who leads.

    Laws:
      1. At no time two daemons may answer, if their clocks run at like speed.
      2. At most one append is under way.
      3. Requests are refused only between `RefuseRequests` and `TakeRequests`, of a leader.
    """

    def __init__(self, daemon: str, address: str, timeout: float = TIMEOUT) -> None:
        """Make a follower; `daemon` is no other's name, not even of one before a restart."""
        self._daemon = daemon
        self._address = address
        self._timeout = timeout
        self.role = Role.FOLLOWER
        self.leader: Term | None = None
        """The last term; None: there was none, or its leader has given it up."""
        self.number = 0
        """Of the last term."""
        self._heard: float | None = None
        """Time of the last news of a leader; None: the log is not open."""
        self._begun: float | None = None
        """Start of the append under way."""
        self._appended = 0.0
        """Start of the last good append."""
        self._is_asked = False
        """Whether an append has been asked for that has not begun."""
        self._is_refusing = False

    @property
    def next_due(self) -> float | None:
        """Latest time of the next event, at least a Tick; None: no need."""
        match self.role:
            case Role.FOLLOWER:
                return None if self._heard is None else self._heard + self._timeout
            case Role.CANDIDATE:
                return None
            case Role.LEADER:
                dues = []
                if self._begun is None and not self._is_asked:
                    dues.append(self._appended + _APPEND_PART * self._timeout)
                if not self._is_refusing:
                    dues.append(self._refusing_due)
                return min(dues, default=None)

    def may_answer(self, now: float) -> bool:
        """Return whether a leader's answers are still those of the log."""
        lease = _LEASE_PART * self._timeout
        return self.role is Role.LEADER and now < self._appended + lease

    def handle(self, event: LeadershipEvent, now: float) -> list[Action]:
        """Handle one event; times never decrease."""
        match event:
            case LogOpened():
                # Its last frame may be as new as this. A leader that is not in it cannot be.
                self._heard = now if self.leader is not None else now - self._timeout
                return []
            case FrameTailed(number):
                self.number = max(self.number, number)
                self._note_news(now)
                return []
            case TermTailed(term):
                return self._on_term(term, now)
            case AppendBegun():
                self._begun, self._is_asked = now, False
                return []
            case AppendEnded():
                return self._on_appended(now)
            case AppendLost(term):
                return self._on_lost(term, now)
            case Tick():
                return self._on_tick(now)

    @property
    def _refusing_due(self) -> float:
        return self._appended + (_LEASE_PART + _PATIENCE) * self._timeout

    def _on_term(self, term: Term, now: float) -> list[Action]:
        self.number = max(self.number, term.number)
        self.leader = term if term.daemon else None
        # Nobody leads where a leader has gone: no need to wait for its silence.
        self._note_news(now if term.daemon else now - self._timeout)
        return [Follow(self.leader, has_led=False)]

    def _note_news(self, now: float) -> None:
        if self._heard is not None:
            self._heard = now

    def _on_appended(self, now: float) -> list[Action]:
        assert self._begun is not None
        self._appended, self._begun = self._begun, None
        if self.role is Role.CANDIDATE:
            self.role = Role.LEADER
            self.number += 1
            self.leader = self._make_term(self.number)
            return [Lead()]
        if self._is_refusing and self.may_answer(now):
            self._is_refusing = False
            return [TakeRequests()]
        return []

    def _on_lost(self, term: Term | None, now: float) -> list[Action]:
        has_led = self.role is Role.LEADER
        self.role, self._begun, self._heard = Role.FOLLOWER, None, None if has_led else now
        self._is_asked = self._is_refusing = False
        if has_led:
            self.leader = None
        if term is not None:
            self.number = max(self.number, term.number)
            self.leader = term if term.daemon else None
        return [Follow(self.leader, has_led)]

    def _on_tick(self, now: float) -> list[Action]:
        if self.role is Role.FOLLOWER:
            if self._heard is None or now < self._heard + self._timeout:
                return []
            self.role = Role.CANDIDATE
            return [AppendTerm(self._make_term(self.number + 1))]
        if self.role is Role.CANDIDATE:
            return []
        actions: list[Action] = []
        is_idle = self._begun is None and not self._is_asked
        if is_idle and now >= self._appended + _APPEND_PART * self._timeout:
            self._is_asked = True
            actions.append(AppendEmpty())
        if not self._is_refusing and now >= self._refusing_due:
            self._is_refusing = True
            actions.append(RefuseRequests())
        return actions

    def _make_term(self, number: int) -> Term:
        return Term(number, self._daemon, self._address)
