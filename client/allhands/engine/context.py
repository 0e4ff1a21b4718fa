"""Collaborators shared by the queue, the runner and the watchdog of one group's calls."""

from allhands.engine.failures.call_errors import PeerDirectory
from allhands.engine.failures.tracker import FailureTracker
from allhands.engine.group_recorder import GroupRecorder
from allhands.engine.numbering import CallNumbering
from allhands.engine.operation import GroupProgress
from allhands.engine.shm.group_channel import GroupChannel
from allhands.runtime.job_thread import JobThread
from allhands.transport.mesh import Mesh
from allhands_proto.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class EngineContext:
    """Identity of one group on one rank, and the objects shared by all parts of the engine."""

    name: str
    ranks: tuple[int, ...]
    """World rank of each group rank."""
    rank: int
    hash: int
    deterministic: bool
    mesh: Mesh
    directory: PeerDirectory
    order: CallNumbering
    recorder: GroupRecorder
    progress: GroupProgress
    failures: FailureTracker
    channel: GroupChannel
    job_thread: JobThread
