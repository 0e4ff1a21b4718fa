"""The suites on a store and links of third parties."""

import re

import pytest

from allhands.testing import link_suite, store_suite
from support.third_party import links, stores
from support.third_party.links import LoopLink
from support.third_party.stores import DictStore

pytest_plugins = ["pytester"]

# Text, not modules: each is a test file of a project of its own, and the test is of that project.

TEST_STORE = """
import pytest
from allhands.testing.conformance import StoreSuite
from support.third_party import stores

class TestMyStore(StoreSuite):
    @pytest.fixture
    def store(self):
        return stores.{store}(timeout={timeout})
"""

TEST_LINKS = """
from contextlib import asynccontextmanager
from allhands.testing.conformance import LinkSuite
from support.third_party import links

class TestMyLinks(LinkSuite):
    @asynccontextmanager
    async def fabrics(self, receivers):
        world = {{}}
        made = [
            links.LoopFabric(world, rank, one, links.{link}) for rank, one in enumerate(receivers)
        ]
        yield made
        for fabric in made:
            await fabric.aclose()
"""

BROKEN_STORES = {
    "get that does not wait": (
        stores.NonWaitingStore,
        {"test_get_waits_until_another_sets_the_key", "test_append_wakes_who_waits_for_the_key"},
    ),
    "set that wakes nobody": (
        stores.SilentStore,
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
        stores.OverwritingStore,
        {"test_compare_set_leaves_and_returns_what_was_not_expected"},
    ),
    "keys in any order": (
        stores.UnsortedStore,
        {"test_keys_are_counted_and_listed_in_order"},
    ),
    "queue that gives the last first": (
        stores.StackStore,
        {"test_a_queue_gives_what_was_pushed_in_order_and_once"},
    ),
}

BROKEN_LINKS = {
    "frames in the wrong order": (
        links.ReorderingLink,
        {"test_frames_arrive_whole_and_in_the_order_sent"},
    ),
    "close that does not wait": (
        links.HastyLink,
        {"test_close_returns_when_everything_has_been_taken_in"},
    ),
    "drop that nobody is told of": (
        links.SilentLink,
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


def outcome(pytester: pytest.Pytester, text: str) -> tuple[int, set[str]]:
    """Return the number of passed tests, and the names of the failed."""
    pytester.makepyfile(test_mine=text)
    result = pytester.runpytest_inprocess("-rf", "-p", "no:cacheprovider")
    failed = re.findall(r"^FAILED \S+::(\w+)", result.stdout.str(), re.MULTILINE)
    return result.parseoutcomes().get("passed", 0), set(failed)


def test_store_that_keeps_the_contract_passes(pytester: pytest.Pytester):
    passed, failed = outcome(pytester, TEST_STORE.format(store="DictStore", timeout=60))
    assert not failed
    assert passed > 40


@pytest.mark.parametrize("broken", BROKEN_STORES.values(), ids=BROKEN_STORES.keys())
def test_store_that_does_not_fails_by_name(
    pytester: pytest.Pytester, broken: tuple[type[DictStore], set[str]]
):
    store, names = broken
    passed, failed = outcome(pytester, TEST_STORE.format(store=store.__name__, timeout=1))
    assert names & failed
    assert passed > 20


def test_links_that_keep_the_contract_pass(pytester: pytest.Pytester):
    passed, failed = outcome(pytester, TEST_LINKS.format(link="LoopLink"))
    assert not failed
    assert passed == 9


@pytest.mark.parametrize("broken", BROKEN_LINKS.values(), ids=BROKEN_LINKS.keys())
def test_links_that_do_not_fail_by_name(
    pytester: pytest.Pytester, broken: tuple[type[LoopLink], set[str]]
):
    link, names = broken
    passed, failed = outcome(pytester, TEST_LINKS.format(link=link.__name__))
    assert names <= failed
    assert passed > 4
