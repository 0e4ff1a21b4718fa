"""Rendezvous through an existing store: agree on the world's coordinator.

Rank 0 says under one key how its meeting is called, all others leave a word under that name, and
rank 0 answers with the words that it has read and where to go. So nobody goes by what an earlier
world left in the store, be it complete or not: such an answer does not have the own word in it.
Whoever waits there is sent on by the next rank 0.
"""

import contextlib
import ipaddress
import json
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from functools import partial
from typing import Any, Protocol

from allhands.config import Daemon, FileRendezvous, HostedByRank0, RendezvousMethod
from allhands.coordinator.endpoint import Endpoint, parse_url
from allhands.coordinator.host_address import find_address_towards
from allhands.deadlines import Timeout
from allhands.errors import StoreTimeout
from allhands.stores import CoordinatorStore
from allhands_proto import notice, process
from allhands_proto.quick_dataclass import dataclass

_PREFIX = "allhands/rendezvous"
_CURRENT_KEY = f"{_PREFIX}/now"
_ACK_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class StoreRendezvous:
    """Result of a rendezvous through a store, for `config.resolve_config`."""

    place: RendezvousMethod
    job: str | None = None
    token: str | None = field(default=None, repr=False)
    tls_ca: str | None = None
    insecure: bool = False
    tls_name: str | None = None
    tls_pair: tuple[str, str] | None = None
    """Paths of the certificate to show to the coordinator, and of its key."""

    @classmethod
    def from_endpoint(cls, url: str, endpoint: Endpoint) -> "StoreRendezvous":
        """Return the meeting at a URL of a coordinator that is reached already."""
        pair = (endpoint.tls_cert, endpoint.tls_key)
        return cls(
            Daemon(url),
            None,
            endpoint.token,
            endpoint.tls_ca,
            endpoint.insecure,
            endpoint.tls_name,
            (pair[0], pair[1]) if pair[0] and pair[1] else None,
        )


@dataclass(frozen=True, slots=True)
class StoreRendezvousHints:
    """Hints of rank 0 on the place of the coordinator, beside the store."""

    url: str | None = None
    """A coordinator that runs already, perhaps with a job."""
    shares_job: bool = False
    """Whether that job is for this world; else it has one of its own, named after it."""
    token: str | None = None
    """What a coordinator beyond loopback is to want, given by the user to all ranks."""
    insecure: bool = False
    """Whether rank 0 may host one beyond loopback."""


class RendezvousStore(Protocol):
    """The part of a `Store` that a rendezvous uses; `underlying_store` and `host` are optional.

    `host` is the host that has the store: rank 0's address on the way to it is assumed to be
    reachable by the other ranks.
    """

    def set(self, key: str, value: bytes | str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: Sequence[str]) -> bool: ...

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None: ...


def rendezvous_via_store(
    store: RendezvousStore,
    rank: int,
    world_size: int,
    timeout: float,
    hints: StoreRendezvousHints | None = None,
) -> StoreRendezvous:
    """Agree on the coordinator through a store; every rank calls once a world.

    That is the coordinator of the store itself, if it has one; else the one that rank 0 knows; else
    one that rank 0 is going to host: on loopback where all ranks are on its host, and otherwise,
    where that is allowed, at the address that it has on the way to the host of the store.

    Raises:
        ValueError: rank or world size are missing; rank 0 may not listen where it would have to.
        StoreTimeout: some rank did not come; on rank 0 the text says which.
        CoordinatorUnavailable: rank 0 could not host.
    """
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"store= needs rank and world_size, not {rank} and {world_size}")
    until = time.monotonic() + timeout
    if rank == 0:
        return _run_rank_0(store, world_size, timeout, until, hints or StoreRendezvousHints())
    return _run_other_rank(store, rank, timeout, until)


def _run_rank_0(
    store: RendezvousStore,
    world_size: int,
    timeout: float,
    deadline: float,
    hints: StoreRendezvousHints,
) -> StoreRendezvous:
    name = secrets.token_hex(8)
    before = store.get(_CURRENT_KEY).decode() if store.check([_CURRENT_KEY]) else None
    store.set(_CURRENT_KEY, name)
    if before is not None:  # perhaps somebody has left a word with it, or has missed it
        if not store.check([_make_answer_key(before)]):
            _write_answer(store, before, [])
        store.set(_make_closed_key(before), b"")
    keys = [_make_nonce_key(name, rank) for rank in range(1, world_size)]
    try:
        store.wait(keys, max(deadline - time.monotonic(), 0))
    except StoreTimeout as error:
        missing = [rank for rank, key in enumerate(keys, 1) if not store.check([key])]
        raise StoreTimeout(
            f"timeout: ranks {missing} of {world_size} did not come to the store in {timeout:g} s; "
            f"rank 0 ({socket.gethostname()}, pid {os.getpid()}) waited for them"
        ) from error
    words = [json.loads(store.get(key)) for key in keys]
    answer = partial(_write_answer, store, name, [word["word"] for word in words])
    try:
        meeting, url = _choose_coordinator(store, name, words, hints, answer)
    except ValueError as error:
        answer(error=str(error))
        raise
    if url:
        answer(url)
    return meeting


def _choose_coordinator(
    store: RendezvousStore,
    rendezvous_id: str,
    words: Sequence[dict[str, Any]],
    hints: StoreRendezvousHints,
    answer: Callable[..., None],
) -> tuple[StoreRendezvous, str]:
    """Return the rendezvous of rank 0 and the URL for other ranks, "" if hosting decides it."""
    job = f"world-{rendezvous_id}"
    if (endpoint := _find_coordinator(store)) is not None:
        url = f"ah://{endpoint.address.target}/{job}"
        return StoreRendezvous.from_endpoint(url, endpoint), url
    if hints.url is not None:
        url = hints.url
        if not hints.shares_job:
            known = parse_url(url)
            url = f"ah://{known.target}/{f'{known.job}-' if known.job else ''}{job}"
        return StoreRendezvous(Daemon(url)), url
    if all(word["here"] == _identify_locality() for word in words):
        path = notice.directory() / f"gathering-{rendezvous_id}.json"
        return StoreRendezvous(FileRendezvous(str(path)), job), f"file://{path}"
    # Without a token of the user's the store tells one, which is as open to strangers.
    told = None if hints.token else secrets.token_urlsafe(32)

    def announce(url: str, error: str) -> None:
        answer(f"{url}/{job}", told, error)

    address = _choose_address(store, words, hints)
    return StoreRendezvous(HostedByRank0(address, 0, announce), job, hints.token or told), ""


def _choose_address(
    store: RendezvousStore, words: Sequence[dict[str, Any]], hints: StoreRendezvousHints
) -> str:
    """Return the address at which rank 0 is going to listen.

    Raises:
        ValueError: it may not, or the others could not reach it there; says what to do.
    """
    remote, word = next(
        one for one in enumerate(words, 1) if one[1]["here"] != _identify_locality()
    )
    both = f"rank 0 on {socket.gethostname()} and rank {remote} on {word['host']}"
    host = getattr(_get_underlying_store(store), "host", None) or socket.gethostname()
    address = find_address_towards(host)
    give = "start one with `allhands serve` and set ALLHANDS_URL=ah://host:port on all ranks"
    if ipaddress.ip_address(address).is_loopback:
        if word["network"] != process.get_net_namespace():
            raise ValueError(
                f"{both} have no coordinator in common, and at {address}, where rank 0 is reached "
                f"on the way to {host}, it can be reached by nobody else: {give}, or give the "
                "store an address of rank 0's host that the others reach"
            )
        if not hints.token:
            raise ValueError(
                f"{both} have no coordinator in common, and cannot read each other's files: "
                "set the same ALLHANDS_TOKEN on all ranks, or " + give
            )
    elif not hints.insecure:
        raise ValueError(
            f"{both} have no coordinator in common, and rank 0 does not host one at {address}, "
            f"where strangers reach it too and read along: {give}, or set ALLHANDS_INSECURE=1 on "
            "all ranks if that network is yours alone"
        )
    return address


def _write_answer(
    store: RendezvousStore,
    rendezvous_id: str,
    nonces: Sequence[str],
    url: str = "",
    token: str | None = None,
    error: str = "",
) -> None:
    told = {"words": nonces, "url": url, "token": token, "error": error}
    store.set(_make_answer_key(rendezvous_id), json.dumps({**told, "host": socket.gethostname()}))
    if error:
        # The store may end with this process, which is about to.
        heard = [_make_ack_key(rendezvous_id, rank) for rank in range(1, len(nonces) + 1)]
        with contextlib.suppress(StoreTimeout):
            store.wait(heard, _ACK_SECONDS)


def _run_other_rank(
    store: RendezvousStore, rank: int, timeout: float, deadline: float
) -> StoreRendezvous:
    word = secrets.token_hex(8)
    said = json.dumps(
        {
            "word": word,
            "here": _identify_locality(),
            "network": process.get_net_namespace(),
            "host": socket.gethostname(),
        }
    )

    def wait(key: str) -> None:
        store.wait([key], max(deadline - time.monotonic(), 0))

    met = "nobody"
    try:
        while True:
            wait(_CURRENT_KEY)
            name = store.get(_CURRENT_KEY).decode()
            store.set(_make_nonce_key(name, rank), said)
            wait(_make_answer_key(name))
            told = json.loads(store.get(_make_answer_key(name)))
            if word in told["words"]:
                if told["error"]:
                    store.set(_make_ack_key(name, rank), b"")
                return _read_answer(told, name, _find_coordinator(store))
            met = f"others, with another process as rank {rank}"
            wait(_make_closed_key(name))
    except StoreTimeout as error:
        raise StoreTimeout(
            f"timeout: rank {rank} waited {timeout:g} s for rank 0 to come to the store, which "
            f"has met with {met}: {error}"
        ) from error


def _read_answer(
    answer: dict[str, Any], rendezvous_id: str, coordinator: Endpoint | None
) -> StoreRendezvous:
    if answer["error"]:
        raise ValueError(f"rank 0 on {answer['host']} cannot say where to meet: {answer['error']}")
    url: str = answer["url"]
    if url.startswith("file://"):
        return StoreRendezvous(
            FileRendezvous(url.removeprefix("file://")), f"world-{rendezvous_id}"
        )
    if coordinator is not None:
        return StoreRendezvous.from_endpoint(url, coordinator)
    return StoreRendezvous(Daemon(url), token=answer["token"])


def _make_nonce_key(rendezvous_id: str, rank: int) -> str:
    return f"{_PREFIX}/{rendezvous_id}/{rank}"


def _make_answer_key(rendezvous_id: str) -> str:
    return f"{_PREFIX}/{rendezvous_id}/place"


def _make_ack_key(rendezvous_id: str, rank: int) -> str:
    return f"{_PREFIX}/{rendezvous_id}/{rank}/heard"


def _make_closed_key(rendezvous_id: str) -> str:
    return f"{_PREFIX}/{rendezvous_id}/over"


def _get_underlying_store(store: object) -> object:
    """Return the store that contains a prefix store's keys."""
    while (whole := getattr(store, "underlying_store", None)) is not None:
        store = whole
    return store


def _find_coordinator(store: object) -> Endpoint | None:
    whole = _get_underlying_store(store)
    return whole.endpoint if isinstance(whole, CoordinatorStore) else None


def _identify_locality() -> str:
    """Return a key equal for processes that share files and loopback with this process."""
    network = process.get_net_namespace() or socket.gethostname()
    try:
        folder = notice.directory().stat()
    except OSError:
        return (
            f"{network}/{process.get_pid_namespace()}:{os.getpid()}"  # it shares files with nobody
        )
    return f"{network}/{folder.st_dev}:{folder.st_ino}"
