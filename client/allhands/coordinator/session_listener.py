"""Interface of session events: the callbacks that a worker implements."""

import time
from collections.abc import Sequence
from typing import Protocol

from allhands.coordinator.conditions import RankCondition
from allhands.coordinator.section_codec import write_section
from allhands.runtime.sections import SectionPosition
from allhands.verdicts import CallCancellation, Verdict
from allhands_proto.v1 import coordinator_pb2 as wire


class SessionListener(Protocol):
    """Callbacks of session events, on the session's loop."""

    def get_progress(self) -> Sequence[wire.Progress]:
        """Return this worker's progress in each group."""

    def take_started_calls(self) -> Sequence[wire.CallStarts]:
        """Return the calls started since the last call of this method, with times."""

    def get_stack(self) -> str:
        """Return where the program of this worker is now."""

    def find_section(self) -> SectionPosition | None:
        """Return the section that the program of this worker is in."""

    def make_report(self, operations: int, nbytes: int) -> bytes:
        """Return the serialised report of this worker, with `operations` of each group."""

    def on_member_lost(self, rank: int, reason: str, found: Verdict) -> None: ...

    def on_member_left(self, left: wire.MemberLeft) -> None: ...

    def on_ruling(self, found: Verdict, pairs: Sequence[tuple[int, int]]) -> None:
        """Handle broken links between pairs of live ranks."""

    def on_links_silent(
        self, found: Verdict, pairs: Sequence[tuple[int, int]], is_over: bool
    ) -> None:
        """Handle living ranks that stopped answering each other, or resumed; may be temporary."""

    def on_aborted(self, group: str, by: str, reason: str) -> None:
        """Handle the abort of a group, or of the world if `group` is empty."""

    def vouch(self, rank: int) -> None:
        """Find out whether a rank is heard over a link, and say so if it is."""

    def describe_rank(self, rank: int) -> str:
        """Describe a rank of the world by host, process and label."""

    def on_conditions(self, told: Sequence[RankCondition]) -> None:
        """Ranks have been silent towards the coordinator, or are heard again."""

    def relay_event(self, event: wire.SessionEvent) -> None:
        """Relay an event of the world to ranks out of the coordinator's reach."""

    def on_call_given_up(self, group: str, sequence: int, given: CallCancellation) -> None:
        """A rank gave a call up on purpose."""

    def on_expelled(self, reason: str) -> None:
        """The coordinator no longer counts this worker as a member."""

    def on_coordinator_gone(self, reason: str) -> None:
        """The coordinator is out of reach; it may come back."""

    def on_coordinator_back(self) -> None:
        """The coordinator is back, and the session goes on."""

    def on_newcomers(self, count: int) -> None:
        """So many workers wait to be taken in."""


def make_heartbeat(
    listener: SessionListener, probe: int = 0, stack: str = ""
) -> wire.SessionRequest:
    beat = wire.Heartbeat(
        probe=probe,
        stack=stack,
        progress=listener.get_progress(),
        call_starts=listener.take_started_calls(),
        sent_at=time.monotonic(),
    )
    write_section(beat, listener.find_section())
    return wire.SessionRequest(heartbeat=beat)
