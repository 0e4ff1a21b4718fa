"""Links between members over which nothing comes through, though both are alive.

A member reports a peer that leaves its pings unanswered. Both are probed, and who does not answer
is left to what the world makes of silent members. Where both do, all members are told of the pair
once. What lasts for the heartbeat window is ruled on as if the link had broken.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from allhands_server.machine.effects import Effect, Report, SilentLinks
from allhands_server.machine.formatting import join_names
from allhands_server.machine.timers import Agenda, Appointment
from allhands_server.machine.world.absent_ranks import judge_unreachable, make_world_verdict
from allhands_server.machine.world.broken_links import Pair, blame, pair
from allhands_server.machine.world.member import Member

if TYPE_CHECKING:
    from allhands_server.machine.world.world import World

SETTLED = 1.0
"""Seconds for which a link must go on before that is said: its two directions go on apart."""
CHECK = 0.3
"""Seconds in which both ends of a silent link answer a probe, and links of one fault are found."""
PROMPT = CHECK / 2
"""Seconds after which an answer is that of a member which was held up when it was asked."""


@dataclass(slots=True)
class _Silence:
    began: float
    appointment: Appointment
    """When it is to be ruled on; once it is over, when that is said."""
    is_over: bool = False
    reporters: set[int] = field(default_factory=set)
    is_named: bool = False
    is_due: bool = False
    """Whether it has lasted for the window."""
    probed: float = 0.0
    """When both ends were asked last."""
    was_held_up: bool = False
    """Whether an end was silent towards the coordinator too, when that looked last."""


class Silences:
    """The silent links of one world, by the pairs of their ends."""

    def __init__(self, world: "World", agenda: Agenda) -> None:
        self._world = world
        self._agenda = agenda
        self._silent: dict[Pair, _Silence] = {}
        self._check: Appointment | None = None

    def begin(self, reporter: Member, rank: int, seconds: float, now: float) -> list[Effect]:
        """Take in that a member has heard nothing from a rank for so long, though it pings it."""
        world, both = self._world, pair(reporter.rank, rank)
        suspect = world.present.get(rank)
        known = world.is_live and reporter.rank in world.present and suspect is not None
        if not known or suspect is reporter or world.is_ruled_on(both):
            return []
        assert suspect is not None
        silence = self._silent.get(both)
        if silence is None or silence.is_over:
            before = min(seconds, world.window) if seconds > 0 else 0.0  # NaN is not
            due = max(now - before + world.window, now + CHECK)
            appointment = self._agenda.at(due, partial(self._due, both))
            was_named = silence is not None and silence.is_named
            self._forget(both)
            silence = _Silence(now - before, appointment, is_named=was_named)
            self._silent[both] = silence
        silence.reporters.add(reporter.rank)
        silence.probed = now
        self._look_soon(now)
        return world.probe([reporter, suspect], now)

    def end(self, reporter: Member, rank: int, now: float) -> list[Effect]:
        """Take in that a member hears a rank again."""
        both = pair(reporter.rank, rank)
        silence = self._silent.get(both)
        if silence is None or silence.is_over:
            return []
        silence.reporters.discard(reporter.rank)
        if silence.reporters:
            return []
        self._forget(both)
        self._world.withdraw_complaint(both)
        if silence.is_named:
            appointment = self._agenda.at(now + SETTLED, partial(self._over, both))
            self._silent[both] = _Silence(silence.began, appointment, is_over=True, is_named=True)
        return []

    def drop(self, gone: int) -> None:
        """Forget the links of a member that is gone: that explains them."""
        self.ruled([both for both in self._silent if gone in both])

    def ruled(self, pairs: Iterable[Pair]) -> None:
        """Forget links of which all members have been told what they mean."""
        for both in pairs:
            self._forget(both)

    # ------------------------------------------------------------ inside

    def _forget(self, both: Pair) -> None:
        if (silence := self._silent.pop(both, None)) is not None:
            silence.appointment.cancel()
        if not self._silent and self._check is not None:
            self._check.cancel()
            self._check = None

    def _over(self, both: Pair, now: float) -> list[Effect]:
        """Say that a link goes on."""
        self._forget(both)
        one, other = (self._world.members[rank] for rank in both)
        verdict = make_world_verdict([], f"{one} and {other} reach each other again: calls go on")
        report = Report(f"job {self._world.job}: {verdict.text}")
        return [*self._world.tell_present(SilentLinks(verdict, (both,), True)), report]

    def _due(self, both: Pair, now: float) -> list[Effect]:
        self._silent[both].is_due = True
        self._look_soon(now)
        return self._world.probe([self._world.present[rank] for rank in both], now)

    def _look_soon(self, now: float) -> None:
        if self._check is None:
            self._check = self._agenda.at(now + CHECK, self._look)

    def _look(self, now: float) -> list[Effect]:
        """Name the pairs of which both ends answer; have it ruled on those that are due."""
        self._check = None
        effects: list[Effect] = []
        named = []
        for both, silence in sorted(self._silent.items()):
            if silence.is_named and not silence.is_due:
                continue
            ends = [self._world.present[rank] for rank in both]
            if not all(one.is_reachable and one.unanswered is None for one in ends):
                silence.was_held_up = True
            elif silence.was_held_up or any(one.replied > silence.probed + PROMPT for one in ends):
                # It has just come back, and what it answers its peer may still be under way.
                silence.was_held_up = False
                silence.probed = now
                effects += self._world.probe(ends, now)
            elif silence.is_due:
                reason = f"nothing has come through for {now - silence.began:.1f} s"
                self._world.complain(both, reason, now)
            else:
                silence.is_named = True
                named.append(both)
        if any(one.is_due or not one.is_named for one in self._silent.values()):
            self._look_soon(now)
        return [*effects, *(self._name(named, now) if named else [])]

    def _name(self, pairs: Sequence[Pair], now: float) -> list[Effect]:
        members = self._world.members
        said = []
        for both in pairs:
            one, other = (members[rank] for rank in both)
            seconds = now - self._silent[both].began
            said.append(
                f"{one} and {other} do not reach each other: nothing has come through between "
                f"{one.join.address} and {other.join.address} for {seconds:.1f} s, though the "
                "coordinator hears both"
            )
        found = [
            judge_unreachable(members[rank], [members[at] for at in others], "pings are unanswered")
            for rank, others in blame(pairs).items()
        ]
        text = (
            f"{join_names(said, quoted=False)}; calls over this link wait, and fail if that "
            f"lasts for {self._world.window:g} s"
        )
        verdict = make_world_verdict(found, text)
        report = Report(f"job {self._world.job}: {verdict.text}")
        return [*self._world.tell_present(SilentLinks(verdict, tuple(pairs))), report]
