"""The suites on a store and links of third parties."""

import re

import pytest

from allhands.testing import link_suite, store_suite

pytest_plugins = ["pytester"]

# Text, not modules: each is a test file of a project of its own, and the test is of that project.

STORE = '''
"""A store in a dict, by somebody who has read the docstrings of Store and nothing else."""

import threading
from collections import deque
from datetime import timedelta

import allhands as ah


def as_bytes(value):
    return value.encode() if isinstance(value, str) else bytes(value)


def as_seconds(timeout):
    found = timeout.total_seconds() if isinstance(timeout, timedelta) else float(timeout)
    if not 0 <= found < float("inf"):
        raise ValueError(f"no timeout: {timeout}")
    return found


def as_key(key):
    if not key:
        raise ValueError("a key has a name")
    return key


class DictStore:
    def __init__(self, timeout=30.0, shared=None):
        self._timeout = as_seconds(timeout)
        self.values, self.queues, self.changed = shared or ({}, {}, threading.Condition())

    @property
    def timeout(self):
        return self._timeout

    def set_timeout(self, timeout):
        self._timeout = as_seconds(timeout)

    def until(self, claim, timeout, missing):
        if not self.changed.wait_for(claim, timeout):
            raise ah.StoreTimeout(f"timeout: nobody has set {missing()}")

    def set(self, key, value):
        with self.changed:
            self.values[as_key(key)] = as_bytes(value)
            self.changed.notify_all()

    def get(self, key):
        return self.multi_get([key])[0]

    def wait(self, keys, timeout=None):
        seconds = self._timeout if timeout is None else as_seconds(timeout)
        missing = lambda: [as_key(key) for key in keys if key not in self.values]
        with self.changed:
            self.until(lambda: not missing(), seconds, missing)

    def add(self, key, amount):
        with self.changed:
            try:
                total = int(self.values.get(as_key(key), b"0")) + amount
            except ValueError:
                raise ah.Refused(f"{key} holds no number") from None
            if not -(2**63) <= total < 2**63:
                raise ah.Refused(f"{key} would leave 64 bits")
            self.set(key, str(total))
            return total

    def compare_set(self, key, expected, desired):
        with self.changed:
            if self.values.get(as_key(key), b"") == as_bytes(expected):
                self.set(key, desired)
            return self.values.get(key, as_bytes(expected))

    def append(self, key, value):
        with self.changed:
            self.set(key, self.values.get(key, b"") + as_bytes(value))

    def multi_get(self, keys):
        with self.changed:
            self.wait(keys)
            return [self.values[key] for key in keys]

    def multi_set(self, keys, values):
        if len(keys) != len(values):
            raise ValueError(f"{len(keys)} keys, but {len(values)} values")
        with self.changed:
            for key in keys:
                as_key(key)
            for key, value in zip(keys, values):
                self.set(key, value)

    def delete_key(self, key):
        with self.changed:
            return self.values.pop(as_key(key), None) is not None

    def num_keys(self):
        return len(self.values)

    def list_keys(self, prefix=""):
        with self.changed:
            return sorted(key for key in self.values if key.startswith(prefix))

    def check(self, keys):
        return all(as_key(key) in self.values for key in keys)

    def queue_push(self, key, value):
        with self.changed:
            self.queues.setdefault(as_key(key), deque()).append(as_bytes(value))
            self.changed.notify_all()

    def queue_pop(self, key, block=True):
        with self.changed:
            if block:
                self.until(lambda: self.queues.get(as_key(key)), self._timeout, lambda: key)
            elif not self.queues.get(as_key(key)):
                raise ah.NotFound(f"queue {key} is empty")
            return self.queues[key].popleft()

    def queue_len(self, key):
        return len(self.queues.get(as_key(key), ()))

    def has_extended_api(self):
        return True

    def clone(self):
        return type(self)(self._timeout, (self.values, self.queues, self.changed))
'''

TEST_STORE = """
import pytest
from allhands.testing.conformance import StoreSuite
from mystore import *

class Mine(DictStore):
    pass

{broken}

class TestMyStore(StoreSuite):
    @pytest.fixture
    def store(self):
        return Mine(timeout={timeout})
"""

LINKS = '''
"""Links that are calls on the loop, by somebody who has read the docstrings of Link alone."""

import asyncio
from allhands.testing.conformance import FrameError, LinkBroken, Unreachable, whole


class MyFabric:
    def __init__(self, world, rank, receiver):
        self.world, self.rank, self.receiver, self.links = world, rank, receiver, {}
        world[rank] = self

    async def dial(self, peer):
        if peer not in self.world:
            raise Unreachable("nobody is there")
        self.links[peer] = MyLink(self, peer)
        return self.links[peer]

    def pump(self, seconds):
        return False

    async def aclose(self):
        if self.world.pop(self.rank, None) is None:
            return
        for other in self.world.values():
            if self.rank in other.links:
                other.links[self.rank].breaks("it went away")


class MyLink:
    def __init__(self, fabric, peer):
        self.fabric, self.peer, self.over, self.underway = fabric, peer, None, 0

    def offer(self, frame):
        if self.over:
            return False
        self.underway += 1
        asyncio.get_running_loop().call_soon(self.deliver, whole(frame))
        return True

    async def send(self, frame):
        if not self.offer(frame):
            raise LinkBroken(self.over)

    def let_go(self):
        pass

    async def close(self):
        while self.underway:
            await asyncio.sleep(0)
        self.over = self.over or "closed"

    def abort(self):
        if self.over is None:
            self.over = "dropped"
            self.target().broken(self.fabric.rank, "dropped")

    def target(self):
        return self.fabric.world[self.peer].receiver

    def deliver(self, frame):
        self.underway -= 1
        if self.over:
            return
        try:
            self.target().accept(self.fabric.rank, frame)
        except FrameError as error:
            self.target().broken(self.fabric.rank, f"protocol error: {error}")
            self.breaks(f"protocol error: {error}")

    def breaks(self, reason):
        if self.over is None:
            self.over = reason
            self.fabric.receiver.broken(self.peer, reason)
'''

TEST_LINKS = """
from contextlib import asynccontextmanager
from allhands.testing.conformance import LinkSuite
from mylinks import *

{broken}

class TestMyLinks(LinkSuite):
    @asynccontextmanager
    async def fabrics(self, receivers):
        world = {{}}
        made = [MyFabric(world, rank, one) for rank, one in enumerate(receivers)]
        yield made
        for fabric in made:
            await fabric.aclose()
"""

BROKEN_STORES = {
    "get that does not wait": (
        "Mine.get = lambda self, key: self.values.get(key, b'')",
        {"test_get_waits_until_another_sets_the_key", "test_append_wakes_who_waits_for_the_key"},
    ),
    "set that wakes nobody": (
        """
def set(self, key, value):
    with self.changed:
        self.values[as_key(key)] = as_bytes(value)
Mine.set = set
""",
        # One at least: who sets the key before the other waits for it wakes nobody in any store.
        {
            "test_get_waits_until_another_sets_the_key",
            "test_wait_returns_once_all_keys_exist",
            "test_multi_get_waits_for_every_key",
            "test_append_wakes_who_waits_for_the_key",
            "test_a_clone_has_the_same_keys_and_its_own_timeout",
        },
    ),
    "compare_set that sets anyway": (
        "Mine.compare_set = lambda self, key, a, b: self.set(key, b) or self.get(key)",
        {"test_compare_set_leaves_and_returns_what_was_not_expected"},
    ),
    "keys in any order": (
        "Mine.list_keys = lambda self, prefix='': [k for k in self.values if k.startswith(prefix)]",
        {"test_keys_are_counted_and_listed_in_order"},
    ),
    "queue that gives the last first": (
        """
def queue_pop(self, key, block=True):
    with self.changed:
        self.queues.get(key, deque()).reverse()
        found = DictStore.queue_pop(self, key, block)
        self.queues[key].reverse()
        return found
Mine.queue_pop = queue_pop
""",
        {"test_a_queue_gives_what_was_pushed_in_order_and_once"},
    ),
}

BROKEN_LINKS = {
    "frames in the wrong order": (
        """
def offer(self, frame):
    if self.over:
        return False
    self.underway += 1
    late = 0.02 if self.underway % 2 else 0
    asyncio.get_running_loop().call_later(late, self.deliver, whole(frame))
    return True
MyLink.offer = offer
""",
        {"test_frames_arrive_whole_and_in_the_order_sent"},
    ),
    "close that does not wait": (
        """
async def close(self):
    self.over = self.over or "closed"
MyLink.close = close
""",
        {"test_close_returns_when_everything_has_been_taken_in"},
    ),
    "drop that nobody is told of": (
        "MyLink.abort = lambda self: None",
        {"test_a_dropped_link_is_told_to_the_receiver"},
    ),
}


@pytest.fixture(autouse=True)
def alone(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the suites need no plugin, and be patient for a moment only."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for suite in (link_suite, store_suite):
        monkeypatch.setattr(suite, "_PATIENCE", 0.3)
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    pytester.makepyfile(mystore=STORE, mylinks=LINKS)


def outcome(pytester: pytest.Pytester, text: str) -> tuple[int, set[str]]:
    """Return the number of passed tests, and the names of the failed."""
    pytester.makepyfile(test_mine=text)
    result = pytester.runpytest_inprocess("-rf", "-p", "no:cacheprovider")
    failed = re.findall(r"^FAILED \S+::(\w+)", result.stdout.str(), re.MULTILINE)
    return result.parseoutcomes().get("passed", 0), set(failed)


def test_store_that_keeps_the_contract_passes(pytester: pytest.Pytester):
    passed, failed = outcome(pytester, TEST_STORE.format(broken="", timeout=60))
    assert not failed
    assert passed > 40


@pytest.mark.parametrize("broken", BROKEN_STORES.values(), ids=BROKEN_STORES.keys())
def test_store_that_does_not_fails_by_name(pytester: pytest.Pytester, broken: tuple[str, set[str]]):
    text, names = broken
    passed, failed = outcome(pytester, TEST_STORE.format(broken=text, timeout=1))
    assert names & failed
    assert passed > 20


def test_links_that_keep_the_contract_pass(pytester: pytest.Pytester):
    passed, failed = outcome(pytester, TEST_LINKS.format(broken=""))
    assert not failed
    assert passed == 9


@pytest.mark.parametrize("broken", BROKEN_LINKS.values(), ids=BROKEN_LINKS.keys())
def test_links_that_do_not_fail_by_name(pytester: pytest.Pytester, broken: tuple[str, set[str]]):
    text, names = broken
    passed, failed = outcome(pytester, TEST_LINKS.format(broken=text))
    assert names <= failed
    assert passed > 4
