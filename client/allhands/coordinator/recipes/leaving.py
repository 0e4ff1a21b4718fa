"""Removal of a place's key, also where its caller has gone on."""

from allhands.coordinator.kv import requests
from allhands.coordinator.kv.transactions import Delete
from allhands.coordinator.recipes.steps import Ask, Pause, Steps
from allhands.errors import AllhandsError, CoordinatorUnavailable, Refused, StoreTimeout

LEAVE_SECONDS = 2.0
"""For which a caller that gives up waits for its key to go, and for the names of the holders."""
_AGAIN_SECONDS = 0.5
_LATE_SECONDS = 2.0
"""After which a request does not arrive any more that its sender gave up."""
_REMOVAL_SECONDS = 10.0


def remove(job: str, key: str, *, is_unsure: bool) -> Steps[None]:
    """Delete a key, as often as it takes.

    Where it is not known whether the key was put, it is deleted again a while later: the request to
    put it may have been on its way over another connection.
    """
    asked = requests.make_delete(job, Delete(key))
    while True:
        try:
            yield Ask(asked, _REMOVAL_SECONDS, is_detached=True)
        except (CoordinatorUnavailable, StoreTimeout, Refused):  # refused by a full log
            yield Pause(_AGAIN_SECONDS)
            continue
        except (AllhandsError, ValueError):
            return  # not allowed: it ends with its lease
        if not is_unsure:
            return
        is_unsure = False
        yield Pause(_LATE_SECONDS)
