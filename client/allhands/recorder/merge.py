"""Merge of the records of the native core and of the Python queue."""

from collections.abc import Iterable
from dataclasses import replace

from allhands.recorder.record import OperationRecord


def merge(
    core: Iterable[tuple[bool, OperationRecord]], queue: Iterable[OperationRecord]
) -> list[OperationRecord]:
    """Return the calls of one group without duplicates, in order of creation.

    Args:
        core: the native core's records, each with whether the call came through the queue: the
            core knows when and how such a call ran, the queue its call site.
    """
    asked = {one.sequence: one for one in queue if one.sequence}
    told = [one for one in queue if not one.sequence]
    for queued, ran in core:
        ask = asked.pop(ran.sequence, None) if queued else None
        if ask is not None:
            ran = replace(
                ask,
                started=ran.started,
                # The queue knows of the end a little later; where only one does, it has ended.
                finished=ran.finished or ask.finished,
                outcome=ask.outcome if ask.outcome != "running" else ran.outcome,
                how=ran.how,
                waits_for=ran.waits_for,
            )
        told.append(ran)
    told += asked.values()
    return sorted(told, key=lambda one: (one.created, one.sequence))
