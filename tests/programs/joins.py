"""Ways into a world, a store or a rendezvous, where the coordinator is far, late or strange.

What needs PyTorch is imported where it is used: the tests skip it where there is none.
"""

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np

import allhands as ah
from allhands import aio
from allhands.coordinator import host_address, rendezvous
from allhands.coordinator.endpoint import Endpoint, parse_url
from allhands.stores import AsyncCoordinatorStore
from programs.protocol import failure, hear, tell


@dataclass(frozen=True)
class Target:
    """Where a coordinator would be."""

    host: str
    port: int
    timeout: float

    @property
    def url(self) -> str:
        return f"ah://{self.host}:{self.port}/job"


def _use_aio(at: Target) -> None:
    async def go() -> None:
        async with aio.connect(at.url, rank=0, world_size=1, timeout=at.timeout):
            pass

    asyncio.run(go())


def _use_aio_store(at: Target) -> None:
    async def go() -> None:
        async with AsyncCoordinatorStore(Endpoint(parse_url(at.url), "s3cret"), job="j") as it:
            await it.num_keys()

    asyncio.run(go())


def _use_torch(at: Target) -> None:
    import torch.distributed as dist

    dist.init_process_group("allhands", init_method=at.url, rank=0, world_size=1)


def _use_torchrun(at: Target) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from allhands.torch.rendezvous.elastic import make_handler

    where = f"{at.host}:{at.port}"
    make_handler(RendezvousParameters("allhands", where, "run", 1, 2, is_host="false"))


def _use_torchrun_url(at: Target) -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from allhands.torch.rendezvous.elastic import make_handler

    make_handler(RendezvousParameters("allhands", "", "run", 1, 2))


ENTRIES: dict[str, Callable[[Target], Any]] = {
    "init": lambda at: ah.init_process_group(at.url, rank=0, world_size=1, timeout=at.timeout),
    "env": lambda at: ah.init_process_group(timeout=at.timeout),
    "hosted": lambda at: ah.init_process_group(
        f"tcp://{at.host}:{at.port}", rank=1, world_size=2, timeout=at.timeout
    ),
    "connect": lambda at: ah.connect(at.url).put("key", b"value", timeout=at.timeout),
    "store": lambda at: ah.TCPStore(at.host, at.port, timeout=at.timeout),
    "aio": _use_aio,
    "aio store": _use_aio_store,
    "torch": _use_torch,
    "torchrun": _use_torchrun,
    "torchrun url": _use_torchrun_url,
    "hosting": lambda at: ah.init_process_group(
        f"tcp://{at.host}:{at.port}", rank=0, world_size=2, timeout=at.timeout, insecure=True
    ),
}
"""Every way in, by its name."""


def be_refused(entry: str, host: str, port: int) -> None:
    tell("refused", **failure(lambda: ENTRIES[entry](Target(host, port, 5))))


def be_refused_at_once(url: str, tls: str | None) -> None:
    tell(
        "failed",
        **failure(lambda: ah.init_process_group(url, rank=0, world_size=1, timeout=3600, tls=tls)),
    )


def join_when_it_is_there(entry: str, host: str, port: int) -> None:
    """Join at a port that does not listen yet; report each warning and their count."""
    warnings = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warnings.append(record.getMessage())
            tell("warned", text=record.getMessage())

    logging.getLogger("allhands.coordinator.attempts").addHandler(Heard())
    joined = ENTRIES[entry](Target(host, port, 60))
    tell("joined", warnings=len(warnings))
    hear()
    del joined
    os._exit(0)


def join_when_its_name_is_known(entry: str, host: str, port: int) -> None:
    """Join at a name without an address until the test's command.

    That needs a resolver of the program's own: for Python's, and for the loop's.
    """
    known = threading.Event()
    look_up, resolve = socket.getaddrinfo, host_address.resolve_host

    def look_up_late(asked: Any, *rest: Any, **named: Any) -> Any:
        if asked == host:
            if not known.is_set():
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            asked = "127.0.0.1"
        return look_up(asked, *rest, **named)

    async def resolve_late(asked: str) -> Any:
        if asked == host:
            if not known.is_set():
                raise ah.CoordinatorUnavailable(f"the host {host!r} has no address")
            asked = "127.0.0.1"
        return await resolve(asked)

    threading.Thread(target=lambda: (hear(), known.set()), daemon=True).start()
    with (
        mock.patch.object(socket, "getaddrinfo", look_up_late),
        mock.patch.object(rendezvous, "resolve_host", resolve_late),
    ):
        join_when_it_is_there(entry, host, port)


def join_as_rank_one(port: int) -> None:
    ah.init_process_group(f"tcp://127.0.0.1:{port}", rank=1, world_size=2, timeout=60)


def talk_in_plaintext(url: str) -> None:
    ah.init_process_group(url, rank=0, world_size=1, insecure=True)
    ah.store().set("key", b"value")
    ah.destroy_process_group()
    with ah.connect(url, insecure=True) as control:
        tell("done", value=control.get("key").decode())


def tell_a_sum() -> None:
    ah.init_process_group()
    x = np.ones(4)
    ah.all_reduce(x)
    tell("done", sum=x[0], size=ah.get_world_size())
    ah.destroy_process_group()
