"""Evidence that the machine asks for: processes of this host, and connections of sessions."""

import asyncio
from collections.abc import Callable, Mapping

from allhands_proto import process, stack_channel
from allhands_server import tcp_acks
from allhands_server.machine.effects import CheckConnection, InspectProcess
from allhands_server.machine.events import ConnectionAcknowledged, Event, ProcessInspected
from allhands_server.session_stream import SessionStream


class EvidenceSearch:
    """Inspections of processes and checks of connections that were asked for."""

    def __init__(
        self, handle: Callable[[Event], None], streams: Mapping[int, SessionStream]
    ) -> None:
        """Tell `handle` what is found; `streams` are the sessions of now, by number."""
        self._handle = handle
        self._streams = streams
        self._inspections: list[InspectProcess] = []
        self._checks: list[CheckConnection] = []
        self._inspecting: set[asyncio.Task[None]] = set()

    def note(self, asked: InspectProcess | CheckConnection) -> None:
        """Take in something to look at, with the next `look`."""
        if isinstance(asked, InspectProcess):
            self._inspections.append(asked)
        else:
            self._checks.append(asked)

    def look(self) -> None:
        """Look at everything asked for that is seen at once, and begin to look at the rest."""
        while self._inspections:
            self._inspect(self._inspections.pop())
        self._check_connections()

    def forget_all(self) -> None:
        """Forget what has not been looked at."""
        self._inspections.clear()
        self._checks.clear()

    def cancel(self) -> None:
        """Stop to look. Idempotent."""
        for looking in self._inspecting:
            looking.cancel()

    def _inspect(self, asked: InspectProcess) -> None:
        found = process.inspect_process(asked.pid, asked.start_ticks)
        self._handle(ProcessInspected(asked.job, asked.member_id, found))
        if not asked.stack_channel or found != "running":
            return
        reading = asyncio.create_task(self._inspect_stack(asked))
        self._inspecting.add(reading)
        reading.add_done_callback(self._inspecting.discard)

    async def _inspect_stack(self, asked: InspectProcess) -> None:
        """Inspect a process and the process's Python stack."""
        stack = await stack_channel.read(asked.pid, asked.start_ticks, asked.stack_channel)
        found = process.inspect_process(asked.pid, asked.start_ticks)
        self._handle(ProcessInspected(asked.job, asked.member_id, found, stack))

    def _check_connections(self) -> None:
        """Tell the machine which hosts acknowledge, with one look for all checks."""
        if not self._checks:
            return
        checks, self._checks = self._checks, []
        peers = {
            one.session: stream.peer
            for one in checks
            if (stream := self._streams.get(one.session)) is not None
        }
        answering = tcp_acks.find_acknowledging(peers.values())
        for one in checks:
            if peers.get(one.session) in answering:
                self._handle(ConnectionAcknowledged(one.job, one.member_id))
