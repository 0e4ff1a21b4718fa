"""Silent links: nothing comes through, though both ends are alive.

A member reports a peer that leaves its pings unanswered. Both ends are probed; an end that does
not answer is left to the failure detector. If both answer, the link is announced once as silent.
A link silent for the heartbeat window is reported as broken.
"""

from collections.abc import Iterable, Sequence
from dataclasses import field
from functools import partial

from allhands_proto.quick_dataclass import dataclass
from allhands_server.machine.effects import Effect, SilentLinks
from allhands_server.machine.formatting import join_names
from allhands_server.machine.timers import Timer, TimerQueue
from allhands_server.machine.world.absent_ranks import judge_unreachable, make_world_verdict
from allhands_server.machine.world.broken_link_monitor import BrokenLinkMonitor
from allhands_server.machine.world.broken_links import Pair, choose_culprits, order_pair
from allhands_server.machine.world.context import WorldContext
from allhands_server.machine.world.member import Member
from allhands_server.machine.world.prober import Prober

RECOVERY_SECONDS = 1.0
"""Time for which data must flow again before the recovery is announced."""
CHECK_SECONDS = 0.3
"""Time in which both ends answer a probe, and further links of one fault are reported."""
PROMPT_SECONDS = CHECK_SECONDS / 2
"""An answer later than this comes from a member that was held up."""


@dataclass(slots=True)
class _SilentLink:
    began_at: float
    timer: Timer
    """Ends the window; after recovery, announces it."""
    is_over: bool = False
    reporters: set[int] = field(default_factory=set)
    is_announced: bool = False
    is_due: bool = False
    """Whether the window has passed."""
    probed_at: float = 0.0
    """Time of the last probe of both ends."""
    was_held_up: bool = False
    """Whether an end was silent towards the coordinator at the last check."""


class SilentLinkMonitor:
    """The silent links of one world, by pairs of ranks."""

    def __init__(
        self,
        world: WorldContext,
        prober: Prober,
        broken_links: BrokenLinkMonitor,
        timers: TimerQueue,
    ) -> None:
        self._world = world
        self._prober = prober
        self._broken_links = broken_links
        self._timers = timers
        self._silent: dict[Pair, _SilentLink] = {}
        self._check_timer: Timer | None = None

    def on_silence(self, reporter: Member, rank: int, seconds: float, now: float) -> list[Effect]:
        """Note a member's report of a rank silent for `seconds` despite pings."""
        world, pair = self._world, order_pair(reporter.rank, rank)
        suspect = world.present.get(rank)
        known = world.is_live and reporter.rank in world.present and suspect is not None
        if not known or suspect is reporter or self._broken_links.is_announced(pair):
            return []
        assert suspect is not None
        silence = self._silent.get(pair)
        if silence is None or silence.is_over:
            before = min(seconds, world.heartbeat_window) if seconds > 0 else 0.0  # NaN is not
            due = max(now - before + world.heartbeat_window, now + CHECK_SECONDS)
            timer = self._timers.schedule(due, partial(self._on_window_passed, pair))
            was_named = silence is not None and silence.is_announced
            self._forget(pair)
            silence = _SilentLink(now - before, timer, is_announced=was_named)
            self._silent[pair] = silence
        silence.reporters.add(reporter.rank)
        silence.probed_at = now
        self._schedule_check(now)
        return self._prober.probe([reporter, suspect], now)

    def on_recovery(self, reporter: Member, rank: int, now: float) -> list[Effect]:
        """Note a member's report of hearing a rank again."""
        pair = order_pair(reporter.rank, rank)
        silence = self._silent.get(pair)
        if silence is None or silence.is_over:
            return []
        silence.reporters.discard(reporter.rank)
        if silence.reporters:
            return []
        self._forget(pair)
        self._broken_links.discard(pair)
        if silence.is_announced:
            timer = self._timers.schedule(
                now + RECOVERY_SECONDS, partial(self._announce_recovery, pair)
            )
            self._silent[pair] = _SilentLink(
                silence.began_at, timer, is_over=True, is_announced=True
            )
        return []

    def drop_rank(self, gone: int) -> None:
        """Forget the links of a departed member: the departure explains the silence."""
        self.discard([pair for pair in self._silent if gone in pair])

    def discard(self, pairs: Iterable[Pair]) -> None:
        """Forget links announced as broken."""
        for pair in pairs:
            self._forget(pair)

    # ------------------------------------------------------------ inside

    def _forget(self, pair: Pair) -> None:
        if (silence := self._silent.pop(pair, None)) is not None:
            silence.timer.cancel()
        if not self._silent and self._check_timer is not None:
            self._check_timer.cancel()
            self._check_timer = None

    def _announce_recovery(self, pair: Pair, now: float) -> list[Effect]:
        """Notify the world of a recovered link."""
        self._forget(pair)
        one, other = (self._world.members[rank] for rank in pair)
        verdict = make_world_verdict([], f"{one} and {other} reach each other again: calls go on")
        report = self._world.events.log("links", verdict.text, now)
        return [*self._world.push_to_present(SilentLinks(verdict, (pair,), True)), report]

    def _on_window_passed(self, pair: Pair, now: float) -> list[Effect]:
        self._silent[pair].is_due = True
        self._schedule_check(now)
        return self._prober.probe([self._world.present[rank] for rank in pair], now)

    def _schedule_check(self, now: float) -> None:
        if self._check_timer is None:
            self._check_timer = self._timers.schedule(now + CHECK_SECONDS, self._check_links)

    def _check_links(self, now: float) -> list[Effect]:
        """Announce silent pairs with two answering ends; report overdue pairs as broken."""
        self._check_timer = None
        effects: list[Effect] = []
        named = []
        for pair, silence in sorted(self._silent.items()):
            if silence.is_announced and not silence.is_due:
                continue
            ends = [self._world.present[rank] for rank in pair]
            if not all(one.is_reachable and one.unanswered_since is None for one in ends):
                silence.was_held_up = True
            elif silence.was_held_up or any(
                one.probe_answered_at > silence.probed_at + PROMPT_SECONDS for one in ends
            ):
                # It has just come back, and what it answers its peer may still be under way.
                silence.was_held_up = False
                silence.probed_at = now
                effects += self._prober.probe(ends, now)
            elif silence.is_due:
                reason = f"nothing has come through for {now - silence.began_at:.1f} s"
                self._broken_links.report(pair, reason, now)
            else:
                silence.is_announced = True
                named.append(pair)
        if any(one.is_due or not one.is_announced for one in self._silent.values()):
            self._schedule_check(now)
        return [*effects, *(self._announce_silence(named, now) if named else [])]

    def _announce_silence(self, pairs: Sequence[Pair], now: float) -> list[Effect]:
        members = self._world.members
        said = []
        for pair in pairs:
            one, other = (members[rank] for rank in pair)
            seconds = now - self._silent[pair].began_at
            said.append(
                f"{one} and {other} do not reach each other: nothing has come through between "
                f"{one.join.address} and {other.join.address} for {seconds:.1f} s, though the "
                "coordinator hears both"
            )
        found = [
            judge_unreachable(members[rank], [members[at] for at in others], "pings are unanswered")
            for rank, others in choose_culprits(pairs).items()
        ]
        text = (
            f"{join_names(said, quoted=False)}; calls over this link wait, and fail if that "
            f"lasts for {self._world.heartbeat_window:g} s"
        )
        verdict = make_world_verdict(found, text)
        report = self._world.events.log("links", verdict.text, now)
        return [*self._world.push_to_present(SilentLinks(verdict, tuple(pairs))), report]
