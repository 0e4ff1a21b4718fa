"""Waits of recipes for a change of keys, within a deadline."""

import time

from allhands.coordinator.kv import requests
from allhands.coordinator.kv.records import WatchPlace
from allhands.coordinator.kv.requests import WatchedKeys
from allhands.coordinator.kv.watching import POLL_SECONDS, WatchRetries
from allhands.coordinator.recipes.session import Session
from allhands.coordinator.recipes.steps import Await, Pause, Steps
from allhands.errors import Compacted, CoordinatorUnavailable, StoreTimeout

_REQUEST_SECONDS = 600.0
"""For a request that is answered at once, also where the wait around has no such end."""


def wait_for_event(
    job: str, keys: WatchedKeys, revision: int, session: Session, deadline: float
) -> Steps[None]:
    """Wait for an event of keys behind a revision, over broken connections.

    Returns also where the events are not known any more: the caller looks at the keys.
    """
    place, retries = WatchPlace(revision + 1), WatchRetries()
    while True:
        asked = requests.make_watch(job, keys, place, wait=True)
        begun = time.monotonic()
        limit = min(POLL_SECONDS, find_remaining(deadline))
        try:
            batch = yield Await(asked, limit, session)
        except Compacted:
            return
        except StoreTimeout:
            continue
        except CoordinatorUnavailable as error:
            if (now := time.monotonic()) >= deadline:
                raise
            pause = retries.find_pause(error, begun, now)
            yield Pause(min(pause, deadline - now))
            continue
        if batch.events:
            return
        place = batch.place


def find_remaining(deadline: float) -> float:
    """Return the seconds that are left for a request.

    Raises:
        StoreTimeout: none.
    """
    if (left := deadline - time.monotonic()) <= 0:
        raise StoreTimeout("the time is over")
    return min(left, _REQUEST_SECONDS)
