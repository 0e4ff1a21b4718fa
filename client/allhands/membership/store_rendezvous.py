"""Meeting through a store that the processes have already: where their world's coordinator is.

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
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from allhands.config import Daemon, Gathering, Hosted, Place
from allhands.coordinator.endpoint import Endpoint, parse_url
from allhands.coordinator.rendezvous import address_towards
from allhands.deadlines import Timeout
from allhands.errors import StoreTimeout
from allhands.stores import CoordinatorStore
from allhands_proto import notice, process

_PREFIX = "allhands/rendezvous"
_NOW = f"{_PREFIX}/now"
_HEARING_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """What `config.settle` takes of it."""

    place: Place
    job: str | None = None
    token: str | None = None
    tls_ca: str | None = None
    insecure: bool = False
    tls_name: str | None = None

    @classmethod
    def at(cls, url: str, endpoint: Endpoint) -> "Meeting":
        """Return the meeting at a URL of a coordinator that is reached already."""
        return cls(
            Daemon(url),
            None,
            endpoint.token,
            endpoint.tls_ca,
            endpoint.insecure,
            endpoint.tls_name,
        )


@dataclass(frozen=True, slots=True)
class Grounds:
    """What rank 0 knows of where to meet, beside the store."""

    url: str | None = None
    """A coordinator that runs already, perhaps with a job."""
    shares_job: bool = False
    """Whether that job is for this world; else it has one of its own, named after it."""
    token: str | None = None
    """What a coordinator beyond loopback is to want, given by the user to all ranks."""
    insecure: bool = False
    """Whether rank 0 may host one beyond loopback."""


class Keys(Protocol):
    """What it takes of a `Store` to meet through it; `underlying_store` and `host` if it has any.

    A host is the one that has the store: an address of rank 0 on the way to it is taken to be one
    at which the others reach rank 0.
    """

    def set(self, key: str, value: bytes | str) -> None: ...

    def get(self, key: str) -> bytes: ...

    def check(self, keys: Sequence[str]) -> bool: ...

    def wait(self, keys: Sequence[str], timeout: Timeout | None = None) -> None: ...


def meet_through(
    store: Keys, rank: int, world_size: int, timeout: float, grounds: Grounds | None = None
) -> Meeting:
    """Agree with the other ranks on where to meet; every rank has to come, world after world.

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
        return _called(store, world_size, timeout, until, grounds or Grounds())
    return _come(store, rank, timeout, until)


# ---------------------------------------------------------------- rank 0


def _called(
    store: Keys, world_size: int, timeout: float, until: float, grounds: Grounds
) -> Meeting:
    name = secrets.token_hex(8)
    before = store.get(_NOW).decode() if store.check([_NOW]) else None
    store.set(_NOW, name)
    if before is not None:  # perhaps somebody has left a word with it, or has missed it
        if not store.check([_answer_key(before)]):
            _answer(store, before, [])
        store.set(_over_key(before), b"")
    keys = [_word_key(name, rank) for rank in range(1, world_size)]
    try:
        store.wait(keys, max(until - time.monotonic(), 0))
    except StoreTimeout as error:
        missing = [rank for rank, key in enumerate(keys, 1) if not store.check([key])]
        raise StoreTimeout(
            f"timeout: ranks {missing} of {world_size} did not come to the store in {timeout:g} s; "
            f"rank 0 ({socket.gethostname()}, pid {os.getpid()}) waited for them"
        ) from error
    words = [json.loads(store.get(key)) for key in keys]
    answer = partial(_answer, store, name, [word["word"] for word in words])
    try:
        meeting, url = _place(store, name, words, grounds, answer)
    except ValueError as error:
        answer(error=str(error))
        raise
    if url:
        answer(url)
    return meeting


def _place(
    store: Keys,
    name: str,
    words: Sequence[dict[str, Any]],
    grounds: Grounds,
    answer: Callable[..., None],
) -> tuple[Meeting, str]:
    """Return where to meet, as rank 0 does and as the others are told; "": hosting tells them."""
    job = f"world-{name}"
    if (endpoint := _coordinator_of(store)) is not None:
        url = f"ah://{endpoint.address.target}/{job}"
        return Meeting.at(url, endpoint), url
    if grounds.url is not None:
        url = grounds.url
        if not grounds.shares_job:
            known = parse_url(url)
            url = f"ah://{known.target}/{f'{known.job}-' if known.job else ''}{job}"
        return Meeting(Daemon(url)), url
    if all(word["here"] == _here() for word in words):
        path = notice.directory() / f"gathering-{name}.json"
        return Meeting(Gathering(str(path)), job), f"file://{path}"
    # Without a token of the user's the store tells one, which is as open to strangers.
    told = None if grounds.token else secrets.token_urlsafe(32)

    def announce(url: str, error: str) -> None:
        answer(f"{url}/{job}", told, error)

    address = _address(store, words, grounds)
    return Meeting(Hosted(address, 0, announce), job, grounds.token or told), ""


def _address(store: Keys, words: Sequence[dict[str, Any]], grounds: Grounds) -> str:
    """Return the address at which rank 0 is going to listen.

    Raises:
        ValueError: it may not, or the others could not reach it there; says what to do.
    """
    remote, word = next(one for one in enumerate(words, 1) if one[1]["here"] != _here())
    both = f"rank 0 on {socket.gethostname()} and rank {remote} on {word['host']}"
    host = getattr(_whole(store), "host", None) or socket.gethostname()
    address = address_towards(host)
    give = "start one with `allhands serve` and set ALLHANDS_URL=ah://host:port on all ranks"
    if ipaddress.ip_address(address).is_loopback:
        if word["network"] != process.network():
            raise ValueError(
                f"{both} have no coordinator in common, and at {address}, where rank 0 is reached "
                f"on the way to {host}, it can be reached by nobody else: {give}, or give the "
                "store an address of rank 0's host that the others reach"
            )
        if not grounds.token:
            raise ValueError(
                f"{both} have no coordinator in common, and cannot read each other's files: "
                "set the same ALLHANDS_TOKEN on all ranks, or " + give
            )
    elif not grounds.insecure:
        raise ValueError(
            f"{both} have no coordinator in common, and rank 0 does not host one at {address}, "
            f"where strangers reach it too and read along: {give}, or set ALLHANDS_INSECURE=1 on "
            "all ranks if that network is yours alone"
        )
    return address


def _answer(
    store: Keys,
    name: str,
    words: Sequence[str],
    url: str = "",
    token: str | None = None,
    error: str = "",
) -> None:
    told = {"words": words, "url": url, "token": token, "error": error}
    store.set(_answer_key(name), json.dumps({**told, "host": socket.gethostname()}))
    if error:
        # The store may end with this process, which is about to.
        heard = [_heard_key(name, rank) for rank in range(1, len(words) + 1)]
        with contextlib.suppress(StoreTimeout):
            store.wait(heard, _HEARING_SECONDS)


# ---------------------------------------------------------------- the others


def _come(store: Keys, rank: int, timeout: float, until: float) -> Meeting:
    word = secrets.token_hex(8)
    said = json.dumps(
        {"word": word, "here": _here(), "network": process.network(), "host": socket.gethostname()}
    )

    def wait(key: str) -> None:
        store.wait([key], max(until - time.monotonic(), 0))

    met = "nobody"
    try:
        while True:
            wait(_NOW)
            name = store.get(_NOW).decode()
            store.set(_word_key(name, rank), said)
            wait(_answer_key(name))
            told = json.loads(store.get(_answer_key(name)))
            if word in told["words"]:
                if told["error"]:
                    store.set(_heard_key(name, rank), b"")
                return _told(told, name, _coordinator_of(store))
            met = f"others, with another process as rank {rank}"
            wait(_over_key(name))
    except StoreTimeout as error:
        raise StoreTimeout(
            f"timeout: rank {rank} waited {timeout:g} s for rank 0 to come to the store, which "
            f"has met with {met}: {error}"
        ) from error


def _told(told: dict[str, Any], name: str, coordinator: Endpoint | None) -> Meeting:
    if told["error"]:
        raise ValueError(f"rank 0 on {told['host']} cannot say where to meet: {told['error']}")
    url: str = told["url"]
    if url.startswith("file://"):
        return Meeting(Gathering(url.removeprefix("file://")), f"world-{name}")
    if coordinator is not None:
        return Meeting.at(url, coordinator)
    return Meeting(Daemon(url), token=told["token"])


# ---------------------------------------------------------------- what all know


def _word_key(name: str, rank: int) -> str:
    return f"{_PREFIX}/{name}/{rank}"


def _answer_key(name: str) -> str:
    return f"{_PREFIX}/{name}/place"


def _heard_key(name: str, rank: int) -> str:
    return f"{_PREFIX}/{name}/{rank}/heard"


def _over_key(name: str) -> str:
    return f"{_PREFIX}/{name}/over"


def _whole(store: object) -> object:
    """Return what the store is a part of."""
    while (whole := getattr(store, "underlying_store", None)) is not None:
        store = whole
    return store


def _coordinator_of(store: object) -> Endpoint | None:
    whole = _whole(store)
    return whole.endpoint if isinstance(whole, CoordinatorStore) else None


def _here() -> str:
    """Name the processes that can read this one's files and reach its loopback."""
    network = process.network() or socket.gethostname()
    try:
        folder = notice.directory().stat()
    except OSError:
        return f"{network}/{process.space()}:{os.getpid()}"  # it shares files with nobody
    return f"{network}/{folder.st_dev}:{folder.st_ino}"
