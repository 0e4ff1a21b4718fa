"""The durable state of a coordinator as a snapshot file."""

from collections.abc import AsyncIterator

from allhands_server.log.errors import LogError, LogFull
from allhands_server.log.journal import Journal
from allhands_server.log.recovery import LogHead
from allhands_server.log.snapshot_file import encode_snapshot_file
from allhands_server.machine import Machine
from allhands_server.machine.refusals import Refusal, Refused, Status


async def encode_state(
    gate: Refusal | None, journal: Journal | None, machine: Machine
) -> AsyncIterator[bytes]:
    """Return the bytes of a snapshot file with the durable state of now, piece by piece.

    Args:
        gate: refusal of all requests, if there is one.
        journal: of the machine; None: there is no log.

    Raises:
        Refused: the log is full or gone, or another daemon leads.
    """
    if gate is not None:
        raise Refused(gate.status, gate.text, gate.leader)
    if journal is None:
        return encode_snapshot_file(LogHead(), machine.list_changes())
    try:
        return encode_snapshot_file(*await journal.copy_state())
    except LogFull as error:
        text = f"the coordinator's log is full: {error}"
        raise Refused(Status.FAILED_PRECONDITION, text) from error
    except LogError as error:
        raise Refused(Status.UNAVAILABLE, str(error)) from error
