"""Events of links to peers: NACKs, broken and silent links, pongs, control frames."""

import asyncio
import logging
import time
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from allhands.coordinator.section_codec import write_section
from allhands.coordinator.session import WORLD_EVENTS
from allhands.engine.failures.tracker import wait_first
from allhands.membership import local_verdict
from allhands.membership.session_events import SessionEvents
from allhands.transport.frame import FrameError, FrameKind, MessageKey
from allhands.verdicts import CallCancellation, Verdict
from allhands_proto.v1 import coordinator_pb2 as wire

logger = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)
_EXIT_SECONDS = 0.3
"""How long a process that ends may still be there when its links are closed."""
_POLL_SECONDS = 0.01
_RULING_SECONDS = 1.5
"""How long a coordinator that is there may take to say what became of a peer."""


class PeerEvents(SessionEvents):
    """Listener of the mesh and of the ping monitor of a worker."""

    def on_nack(self, peer: int, key: MessageKey, call: str) -> None:
        self._notify_group(
            peer, key.group, lambda engine: engine.events.on_refused(peer, key, call)
        )

    def on_mismatch(self, peer: int, key: MessageKey) -> None:
        for engine in self._engines.values():
            if engine.hash == key.group and peer in engine.ranks:
                engine.events.on_mismatch(peer, key)

    def on_link_broken(self, peer: int, reason: str) -> None:
        if peer in self._lost or peer in self._left or self._is_closed:
            return
        logger.debug("link with rank %d broke: %s", peer, reason)
        self._pings.forget(peer)
        self._opinion_tasks[peer] = asyncio.create_task(self._resolve_broken_link(peer, reason))

    def pong_payload(self) -> bytes:
        said = wire.Heartbeat(progress=self.get_progress(), stack=self.get_stack())
        write_section(said, self.sections.find_current())
        return said.SerializeToString()

    def on_pong(self, peer: int, payload: bytes) -> None:
        self._pongs[peer] = _parse(wire.Heartbeat(), payload)
        self._pong_times[peer] = time.monotonic()
        self._pong_arrived.set()

    def on_control(self, peer: int, kind: FrameKind, key: MessageKey, payload: bytes) -> None:
        if kind is FrameKind.ABORT:
            told = _parse(wire.Aborted(), payload)
            self.on_aborted(told.group, told.by, told.reason)
            return
        if kind is FrameKind.RELAY:
            event = _parse(wire.SessionEvent(), payload)
            if event.WhichOneof("event") in WORLD_EVENTS:
                self._session.handle_event(event, self)
            return
        given = CallCancellation(peer, self.describe_rank(peer), payload.decode(errors="replace"))
        self._notify_group(
            peer, key.group, lambda engine: engine.events.on_given_up(key.sequence, given)
        )

    async def _resolve_broken_link(self, peer: int, reason: str) -> None:
        """Report a broken link; judge the peer locally if the coordinator is gone."""
        await self._session.report_broken_link(peer, reason, self.shares_memory(peer))
        # Cancelled by the coordinator's word; where that does not come it may be out of reach.
        if not await wait_first(self._coordinator_gone.wait(), timeout=_RULING_SECONDS):
            found = await self._inspect_process(peer, reason)
            if found.absent[0].state == "dead":
                self.on_member_lost(peer, reason, found)
                return
            await self._coordinator_gone.wait()
        found = await self._inspect_process(peer, reason)
        if found.absent[0].state == "dead" or not self.shares_memory(peer):
            self.on_member_lost(peer, reason, found)

    async def _inspect_process(self, peer: int, reason: str) -> Verdict:
        """Inspect the process behind a broken link, for up to 0.3 s while it may be ending."""
        member, until = self.members[peer], time.monotonic() + _EXIT_SECONDS
        found = local_verdict.judge_broken_link(member, reason, self._pid_namespace)
        while (
            found.absent[0].state == "unreachable"
            and member.pid_namespace == self._pid_namespace != ""
        ):
            if time.monotonic() > until:
                break
            await asyncio.sleep(_POLL_SECONDS)  # nothing tells of the end of a process
            found = local_verdict.judge_broken_link(member, reason, self._pid_namespace)
        return found

    def _send_link_silent(self, rank: int, seconds: float) -> None:
        silent = wire.LinkSilent(rank=rank, seconds=seconds)
        self._session.send(wire.SessionRequest(link_silent=silent))

    def _send_link_answers(self, rank: int) -> None:
        answers = wire.LinkSilent(rank=rank, is_over=True)
        self._session.send(wire.SessionRequest(link_silent=answers))


def _parse(message: M, payload: bytes) -> M:
    """Parse a peer's control payload; raise FrameError if malformed."""
    try:
        message.ParseFromString(payload)
    except DecodeError as error:
        raise FrameError(f"no {type(message).__name__}: {error}") from error
    return message
