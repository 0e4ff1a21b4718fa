"""Probes of members over sessions, and inspections of processes."""

from collections.abc import Iterable, Mapping

from allhands_server.machine.effects import Effect, InspectPeer, InspectProcess, Probe, Push
from allhands_server.machine.world.member import Member


class Prober:
    """Asks members of one world for signs of life.

    `pid_namespace` names the processes that the coordinator itself can inspect; `present` has the
    world's members by rank, and is read at each call.
    """

    def __init__(self, job: str, pid_namespace: str, present: Mapping[int, Member]) -> None:
        self._job = job
        self._pid_namespace = pid_namespace
        self._present = present
        self._numbers = 0

    def probe(self, members: Iterable[Member], now: float, *, stack: bool = False) -> list[Effect]:
        """Ask members for a heartbeat at once, with stacks if `stack`."""
        effects: list[Effect] = []
        for member in members:
            if member.is_reachable:
                self._numbers += 1
                if member.unanswered_since is None:
                    member.unanswered_since = now
                if stack:
                    member.stack = ""
                effects.append(Push(member.session, Probe(self._numbers, stack)))
        return effects

    def inspect_process(self, member: Member, *, stack: bool = False) -> list[Effect]:
        """Have a member's process inspected, by the coordinator or a neighbour on the same host.

        With `stack` also its Python stack, unless that is known. Empty: no process can do so.
        """
        join = member.join
        if not (join.pid_namespace and join.start_ticks):
            return []
        channel = join.stack_channel if stack and not member.stack else ""
        if join.pid_namespace == self._pid_namespace:
            asked = InspectProcess(self._job, member.member_id, join.pid, join.start_ticks, channel)
            return [asked]
        for one in self._present.values():
            answers = one.is_reachable and one.unanswered_since is None
            if one is not member and answers and one.join.pid_namespace == join.pid_namespace:
                process = InspectPeer(member.member_id, join.pid, join.start_ticks, channel)
                return [Push(one.session, process)]
        return []
