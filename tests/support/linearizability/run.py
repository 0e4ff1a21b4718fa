"""A run: clients, faults in between, and the verdict on the history."""

from dataclasses import dataclass

from support.full_disk import SmallDisk
from support.linearizability.checker import Undecided, find_contradiction
from support.linearizability.clients import QUEUE_PART, Client, Progress, running_clients
from support.linearizability.disturbances import Disturber
from support.linearizability.history import History, Operation
from support.linearizability.models import KeysModel, QueueModel
from support.linearizability.watchers import watching
from support.served_daemon import ServedDaemon

CLIENTS = 8


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a run."""

    operations: int
    unknown: int
    """Calls whose outcome nobody knows."""
    refused: int
    """Calls that a full log refused."""
    events: int
    """Events that a watch of all keys has seen."""
    gaps: int
    """Times at which the watch came too late, and was told."""
    keep_alives: int
    faults: tuple[str, ...]
    contradictions: dict[str, str]
    """By the part of the state."""

    def __str__(self) -> str:
        told = (
            f"{self.operations:,} operations, {self.unknown} of unknown outcome, "
            f"{self.refused} refused, {self.events:,} events watched with {self.gaps} gaps, "
            f"{self.keep_alives:,} keep-alives, {len(self.faults)} faults"
        )
        found = (f"{part}: {why}" for part, why in self.contradictions.items())
        return "\n".join([told, *found])


def run_history(
    daemon: ServedDaemon, disk: SmallDisk | None, calls: int, faults: int, seed: int
) -> Run:
    """Have 8 clients call a daemon that faults befall; check all results.

    In the end the daemon is killed once more, and everything that was written is read.
    """
    history, progress = History(), Progress()
    disturber = Disturber(daemon, disk, progress, calls // (faults + 1))
    daemon.start()
    with watching(daemon.endpoint, progress) as (watcher, holder):
        with running_clients(CLIENTS, daemon.endpoint, history, progress, seed):
            made = disturber.disturb(faults)
        disturber.kill()
        Client(CLIENTS, daemon.endpoint, history, progress).read_all(sorted(history.parts))
    contradictions = check_history(history.parts)
    for place, fault in enumerate((*watcher.find_faults(history.parts), *holder.faults)):
        contradictions[f"watch and lease {place}"] = fault
    return Run(
        len(history),
        progress.unknown,
        progress.refused,
        len(watcher.events),
        len(watcher.gaps),
        holder.keep_alives,
        tuple(made),
        contradictions,
    )


def check_history(parts: dict[str, list[Operation]]) -> dict[str, str]:
    """Return why parts of a history are not linearizable, or not known to be; empty: they are."""
    found = {}
    for part, operations in parts.items():
        try:
            why = (
                find_contradiction(QueueModel(), operations)
                if part.startswith(QUEUE_PART)
                else find_contradiction(KeysModel(), operations)
            )
        except Undecided as error:
            found[part] = f"undecided: {error}"
        else:
            if why is not None:
                found[part] = str(why)
    return found
