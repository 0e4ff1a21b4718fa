"""Rendezvous of ranks with a store: threads as ranks, without a hosted coordinator."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from allhands.config import Daemon, FileRendezvous, HostedByRank0
from allhands.errors import StoreTimeout
from allhands.membership import store_rendezvous
from allhands.membership.store_rendezvous import (
    StoreRendezvous,
    StoreRendezvousHints,
    rendezvous_via_store,
)
from allhands.stores import HashStore, PrefixStore

_PATIENCE = 20.0


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as threads:
        yield threads


@dataclass
class _Elsewhere:
    """A store with a host's address."""

    keys: HashStore
    host: str

    @property
    def underlying_store(self) -> None:
        return None

    def __getattr__(self, name: str) -> object:
        return getattr(self.keys, name)


def _meet(
    pool: ThreadPoolExecutor,
    stores: list[store_rendezvous.RendezvousStore],
    grounds: StoreRendezvousHints | None = None,
) -> list["Future[StoreRendezvous]"]:
    return [
        pool.submit(rendezvous_via_store, store, rank, len(stores), _PATIENCE, grounds)
        for rank, store in enumerate(stores)
    ]


@pytest.fixture
def apart(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Give each rank a separate locality."""
    places = threading.local()
    count = iter(range(100))

    def here() -> str:
        if not hasattr(places, "name"):
            places.name = f"place {next(count)}"
        return str(places.name)

    return lambda: monkeypatch.setattr(store_rendezvous, "_identify_locality", here)


def test_ranks_of_one_host_meet_by_a_note_that_only_their_user_reads(
    pool: ThreadPoolExecutor,
) -> None:
    store = PrefixStore("part", HashStore())
    told = [one.result(_PATIENCE) for one in _meet(pool, [store] * 3)]
    assert all(isinstance(one.place, FileRendezvous) for one in told)
    assert len(set(told)) == 1


def test_each_world_of_a_store_meets_somewhere_else(pool: ThreadPoolExecutor) -> None:
    store = HashStore()
    places = {one.result(_PATIENCE).place for _ in range(3) for one in _meet(pool, [store] * 2)}
    assert len(places) == 3


def test_what_a_world_that_never_met_left_in_the_store_is_nobodys_answer(
    pool: ThreadPoolExecutor,
) -> None:
    store = HashStore()
    late = [pool.submit(rendezvous_via_store, store, rank, 3, 0.05) for rank in (1, 2)]
    early = pool.submit(rendezvous_via_store, store, 0, 4, 0.05)
    for one in (*late, early):
        with pytest.raises(StoreTimeout):
            one.result(_PATIENCE)
    others = [pool.submit(rendezvous_via_store, store, rank, 3, _PATIENCE) for rank in (1, 2)]
    first = pool.submit(rendezvous_via_store, store, 0, 3, _PATIENCE)
    assert {one.result(_PATIENCE).place for one in others} == {first.result(_PATIENCE).place}


def test_a_coordinator_that_rank_0_knows_is_where_all_meet(pool: ThreadPoolExecutor) -> None:
    store = HashStore()
    grounds = StoreRendezvousHints(url="ah://127.0.0.1:7070/train", shares_job=True)
    told = [one.result(_PATIENCE) for one in _meet(pool, [store] * 2, grounds)]
    assert [one.place for one in told] == [Daemon("ah://127.0.0.1:7070/train")] * 2


@pytest.mark.parametrize("known", ["ah://127.0.0.1:7070/train", "ah://127.0.0.1:7070"])
def test_a_world_with_a_job_of_its_own_is_named_after_that_of_the_url(
    pool: ThreadPoolExecutor, known: str
) -> None:
    store = HashStore()
    [first, second] = [
        one.result(_PATIENCE).place for one in _meet(pool, [store] * 2, StoreRendezvousHints(known))
    ]
    assert first == second
    assert isinstance(first, Daemon)
    assert "/train-world-" in first.url if "train" in known else "7070/world-" in first.url


def test_rank_0_hosts_on_loopback_with_the_token_that_all_have(
    pool: ThreadPoolExecutor, apart: Callable[[], None]
) -> None:
    apart()
    store = _Elsewhere(HashStore(), "127.0.0.1")
    first, second = _meet(pool, [store, store], StoreRendezvousHints(token="ours"))
    meeting = first.result(_PATIENCE)
    assert isinstance(meeting.place, HostedByRank0)
    assert (meeting.place.host, meeting.place.port, meeting.token) == ("127.0.0.1", 0, "ours")
    assert not second.done()
    assert meeting.place.on_listening is not None
    meeting.place.on_listening("ah://127.0.0.1:1234", "")
    told = second.result(_PATIENCE)
    assert told.place == Daemon(f"ah://127.0.0.1:1234/{meeting.job}")
    assert told.token is None  # it has that already; the store never has it


def test_all_ranks_are_told_why_rank_0_cannot_host(
    pool: ThreadPoolExecutor, apart: Callable[[], None]
) -> None:
    apart()
    store = _Elsewhere(HashStore(), "127.0.0.1")
    for one in _meet(pool, [store] * 3):
        with pytest.raises(ValueError, match="ALLHANDS_TOKEN on all ranks"):
            one.result(_PATIENCE)


def test_rank_0_does_not_end_before_all_have_heard_why(
    pool: ThreadPoolExecutor, apart: Callable[[], None]
) -> None:
    apart()
    store = _Elsewhere(HashStore(), "127.0.0.1")
    heard: list[bool] = []
    first, second = _meet(pool, [store, store])
    first.add_done_callback(
        lambda _: heard.append(any(key.endswith("/heard") for key in store.keys.list_keys()))
    )
    for one in (first, second):
        with pytest.raises(ValueError, match="ALLHANDS_TOKEN"):
            one.result(_PATIENCE)
    assert heard == [True]  # the store may end with rank 0


def test_a_host_that_cannot_listen_says_so_to_all(
    pool: ThreadPoolExecutor, apart: Callable[[], None]
) -> None:
    apart()
    store = _Elsewhere(HashStore(), "127.0.0.1")
    first, second = _meet(pool, [store, store], StoreRendezvousHints(token="ours"))
    place = first.result(_PATIENCE).place
    assert isinstance(place, HostedByRank0)
    assert place.on_listening is not None
    place.on_listening("", "no port is free")
    with pytest.raises(ValueError, match=r"rank 0 on .* cannot.*no port is free"):
        second.result(_PATIENCE)


def test_rank_0_names_who_did_not_come(pool: ThreadPoolExecutor) -> None:
    store = HashStore()
    here = pool.submit(rendezvous_via_store, store, 2, 4, 1.5)
    with pytest.raises(StoreTimeout, match=r"ranks \[1, 3\] of 4 did not come"):
        rendezvous_via_store(store, 0, 4, 1.0)
    with pytest.raises(StoreTimeout, match="rank 2 waited"):
        here.result(_PATIENCE)
