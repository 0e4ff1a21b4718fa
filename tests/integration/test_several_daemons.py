"""Clients of several daemons with one log: they find the leader, and move with it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest

from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint, parse_url
from allhands.errors import CoordinatorUnavailable
from allhands.stores.asynchronous import AsyncCoordinatorStore
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc
from allhands_server import embedded
from allhands_server.config import ServerConfig
from support.fake_etcd import FakeEtcd

TOKEN = "token-of-all"


class Daemons:
    """Daemons in this process, with a log in a server of etcd's API."""

    def __init__(self, fake: FakeEtcd) -> None:
        self._fake = fake
        self.all: list[embedded.RunningCoordinator] = []

    async def start(self, count: int) -> None:
        for _ in range(count):
            config = ServerConfig(
                token=TOKEN, store=self._fake.get_address(), post_notice=False, drain_timeout=0
            )
            self.all.append(await embedded.start(config))

    @property
    def endpoint(self) -> Endpoint:
        hosts = ",".join(one.url.removeprefix("ah://") for one in self.all)
        return Endpoint(parse_url(f"ah://{hosts}/job"), TOKEN)

    async def find_leader(self) -> embedded.RunningCoordinator:
        async with asyncio.timeout(60):
            while True:
                for one in self.all:
                    if (await describe(one)).role == "leader":
                        return one
                await asyncio.sleep(0.05)

    async def stop(self, one: embedded.RunningCoordinator) -> None:
        self.all.remove(one)
        await one.stop()


async def describe(one: embedded.RunningCoordinator) -> wire.CoordinatorDescription:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{one.port}") as channel:
        return await coordinator_pb2_grpc.CoordinatorStub(channel).DescribeCoordinator(
            wire.DescribeCoordinatorRequest(),
            metadata=(("authorization", f"Bearer {TOKEN}"),),
        )


async def until_known(one: embedded.RunningCoordinator) -> wire.CoordinatorDescription:
    """Return what a daemon says as soon as it knows who leads."""
    async with asyncio.timeout(60):
        while True:
            if (told := await describe(one)).leader:
                return told
            await asyncio.sleep(0.05)  # nothing tells of it


@asynccontextmanager
async def run_daemons() -> AsyncIterator[Daemons]:
    fake = FakeEtcd()
    await fake.start()
    daemons = Daemons(fake)
    try:
        await daemons.start(3)
        yield daemons
    finally:
        for one in list(daemons.all):
            await daemons.stop(one)
        await fake.stop()


@pytest.fixture
async def daemons() -> AsyncIterator[Daemons]:
    async with run_daemons() as made:
        yield made


async def test_each_daemon_says_who_leads(daemons: Daemons) -> None:
    leader = await daemons.find_leader()
    for one in daemons.all:
        told = await until_known(one)
        assert told.leader == f"127.0.0.1:{leader.port}"
        assert told.term == 1
        assert told.role == ("leader" if one is leader else "follower")


async def test_a_client_of_all_daemons_goes_on_when_the_leader_goes(daemons: Daemons) -> None:
    with Control(daemons.endpoint, job="job", timeout=60) as control:
        assert await asyncio.to_thread(control.add, "n") == 1
        waiting = asyncio.create_task(asyncio.to_thread(control.get, "later", wait=True))
        for number in range(2, 4):
            await daemons.stop(await daemons.find_leader())
            assert await asyncio.to_thread(control.add, "n") == number
        await asyncio.to_thread(control.put, "later", b"x")
        assert await waiting == b"x"
        assert [job.job for job in await asyncio.to_thread(control.jobs)] == ["job"]


async def test_an_awaited_client_of_all_daemons_goes_on_when_the_leader_goes(
    daemons: Daemons,
) -> None:
    async with AsyncCoordinatorStore(daemons.endpoint, job="job", timeout=60) as store:
        assert await store.add("n", 1) == 1
        waiting = asyncio.create_task(store.get("later"))
        for number in range(2, 4):
            await daemons.stop(await daemons.find_leader())
            assert await store.add("n", 1) == number
        await store.set("later", b"x")
        assert await waiting == b"x"


async def test_a_watch_goes_on_when_the_leader_goes(daemons: Daemons) -> None:
    with Control(daemons.endpoint, job="job", timeout=60) as control:
        first = await asyncio.to_thread(control.put, "k", b"1")
        with control.watch("k", revision=first) as watch:
            changes = iter(watch)
            assert (await asyncio.to_thread(next, changes)).value == b"1"
            coming = asyncio.create_task(asyncio.to_thread(next, changes))
            await daemons.stop(await daemons.find_leader())
            await asyncio.to_thread(control.put, "k", b"2")
            assert (await coming).value == b"2"


async def test_a_client_of_one_daemon_is_told_where_the_leader_is(daemons: Daemons) -> None:
    leader = await daemons.find_leader()
    follower = next(one for one in daemons.all if one is not leader)
    await until_known(follower)
    endpoint = Endpoint(parse_url(follower.url), TOKEN)
    for use_lines in (True, False):
        with Control(endpoint, job="job", timeout=60, use_lines=use_lines) as control:
            text = f"the leader is 127.0.0.1:{leader.port}"
            with pytest.raises(CoordinatorUnavailable, match=text):
                await asyncio.to_thread(control.put, "k", b"x")


async def test_a_client_of_daemons_that_are_all_gone_names_each(daemons: Daemons) -> None:
    endpoint = daemons.endpoint
    for one in list(daemons.all):
        await daemons.stop(one)
    refused = pytest.raises(CoordinatorUnavailable, match="nothing listens there")
    with Control(endpoint, job="job", timeout=60) as control, refused as raised:
        await asyncio.to_thread(control.put, "k", b"x")
    assert all(one.target in str(raised.value) for one in endpoint.address.daemons)
