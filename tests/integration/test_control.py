"""The synchronous client against a real coordinator."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from allhands import errors
from allhands.coordinator.client import Control, connect
from allhands.coordinator.endpoint import Address, Endpoint
from allhands.testing.daemon import DaemonProcess
from allhands.testing.poll import poll_until
from allhands.testing.raw_member import RawMember
from allhands_proto.kv_results import CompareSetResult
from allhands_proto.v1 import coordinator_pb2 as wire

# ---------------------------------------------------------------- keys


def test_revisions_grow_with_each_change(control: Control) -> None:
    first = control.put("a", b"1")
    assert control.put("a", b"2") > first
    assert control.multi_put({"b": b"", "c": "text"}) > first + 1


def test_get_without_waiting_says_that_there_is_no_such_key(control: Control) -> None:
    with pytest.raises(errors.NotFound, match="nothing-here") as caught:
        control.get("nothing-here")
    assert isinstance(caught.value, LookupError)


def test_a_wait_names_the_keys_that_nobody_set(control: Control) -> None:
    control.put("present", b"")
    with pytest.raises(errors.StoreTimeout, match=r"(?i)timeout.*missing"):
        control.wait(["present", "missing"], timeout=1.0)


def test_a_timeout_of_zero_still_finds_what_is_wrong(control: Control) -> None:
    with pytest.raises(errors.StoreTimeout):
        control.get("missing", wait=True, timeout=0)


def test_compare_and_set_says_what_it_found(control: Control) -> None:
    assert control.cas("key", b"old", b"new") == CompareSetResult(swapped=False, value=None)
    assert control.cas("key", b"", b"first") == CompareSetResult(swapped=True, value=b"first")
    assert control.cas("key", b"other", b"new") == CompareSetResult(swapped=False, value=b"first")


def test_append_returns_the_new_length(control: Control) -> None:
    assert control.append("key", b"abc") == 3
    assert control.append("key", "d") == 4


def test_multi_get_without_waiting_wants_every_key(control: Control) -> None:
    control.put("a", b"1")
    with pytest.raises(errors.NotFound, match="b"):
        control.multi_get(["a", "b"])


def test_keys_of_one_job_are_not_seen_in_another(control: Control, daemon: DaemonProcess) -> None:
    control.put("mine", b"")
    with Control(daemon.endpoint, job=f"{control.job_name}-other") as other:
        assert other.list() == ()
        other.put("mine", b"theirs")
    assert control.get("mine") == b""


def test_what_the_coordinator_calls_nonsense_is_a_value_error(daemon: DaemonProcess) -> None:
    with (
        Control(daemon.endpoint, job="no such name") as odd,
        pytest.raises(ValueError, match="job"),
    ):
        odd.put("key", b"")


def test_keys_need_a_job(daemon: DaemonProcess) -> None:
    with Control(daemon.endpoint, job=None) as control, pytest.raises(ValueError, match="no job"):
        control.put("key", b"")


# ---------------------------------------------------------------- barriers


def test_a_barrier_opens_when_all_have_arrived(control: Control) -> None:
    control.put("key", b"")  # a job that holds nothing is forgotten, and how often it opened
    names = ["a", "b", "c"]
    with ThreadPoolExecutor(3) as pool:
        first = list(pool.map(lambda name: control.barrier("gate", name, names), names))
        second = list(pool.map(lambda name: control.barrier("gate", name, names), names))
    assert len({*first}) == len({*second}) == 1
    assert second[0] == first[0] + 1


def test_a_barrier_names_who_did_not_arrive(control: Control) -> None:
    with pytest.raises(errors.StoreTimeout, match="absent"):
        control.barrier("gate", "present", ["present", "absent"], timeout=1.0)


def test_a_barrier_refuses_other_participants(control: Control) -> None:
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(_arrive_at_last, control, "a", ["a", "b"])
        second = _refusal(control, "c", ["a", "c"])
        control.barrier("gate", "b", ["a", "b"])
        first.result()
    assert isinstance(second, errors.Refused)


def _arrive_at_last(control: Control, name: str, names: list[str]) -> None:
    """Arrive at a barrier, again after a refusal for other participants."""
    while True:
        try:
            control.barrier("gate", name, names)
            return
        except errors.Refused:
            continue


def _refusal(control: Control, name: str, names: list[str]) -> Exception | None:
    """Arrive until the coordinator refuses: alone at the barrier, we only time out."""
    for _ in range(100):
        try:
            control.barrier("gate", name, names, timeout=0.05)
        except errors.StoreTimeout:
            continue
        except errors.Refused as error:
            return error
    return None


# ---------------------------------------------------------------- looking


def test_a_job_tells_its_members_and_what_they_do(
    control: Control, join_job: Callable[[int, int], RawMember]
) -> None:
    first, _second = join_job(0, 2), join_job(1, 2)
    first.send(open_group=wire.OpenGroup(group="world", ranks=[0, 1]))
    doing = wire.Progress(
        group="world", sequence=7, completed=6, operation="all_reduce", elapsed=1.5
    )
    first.send(heartbeat=wire.Heartbeat(progress=[doing]))
    poll_until(lambda: bool(control.job().members[0].operations))

    found = control.job()
    assert (found.job, found.state, found.world_size) == (control.job_name, "running", 2)
    assert [group.group for group in found.groups] == ["world"]
    assert found.groups[0].ranks == (0, 1)
    member = found.members[0]
    assert (member.rank, member.host, member.pid, member.label) == (0, "node-a", 4000, "label-0")
    assert member.address.endswith(":5000")
    assert member.state == "joined"
    assert 0 <= member.last_heartbeat < 30
    [operation] = member.operations
    assert (operation.group, operation.operation) == ("world", "all_reduce")
    assert (operation.sequence, operation.completed) == (7, 6)
    assert 1.5 <= operation.elapsed < 30
    assert [one.member_id for one in control.members()] == [one.member_id for one in found.members]


def test_an_unknown_job_is_not_found(control: Control) -> None:
    with pytest.raises(errors.NotFound, match="never-heard-of"):
        control.job("never-heard-of")


def test_jobs_come_by_name(control: Control) -> None:
    control.put("key", b"")
    names = [job.job for job in control.jobs()]
    assert control.job_name in names
    assert names == sorted(names)


# ---------------------------------------------------------------- reaching


def test_a_wrong_token_is_refused(daemon: DaemonProcess) -> None:
    stranger = Endpoint(daemon.endpoint.address, "wrong")
    with Control(stranger, job="j") as control, pytest.raises(errors.Unauthenticated):
        control.put("key", b"")


def test_no_token_is_refused(daemon: DaemonProcess) -> None:
    stranger = Endpoint(daemon.endpoint.address, None)
    with Control(stranger, job="j") as control, pytest.raises(errors.Unauthenticated):
        control.jobs()


def test_nobody_at_the_address_is_said_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # but does not listen
        nobody = Address("127.0.0.1", taken.getsockname()[1])
        control = Control(Endpoint(nobody, "token"), job="j", timeout=60)
        with control, pytest.raises(errors.CoordinatorUnavailable, match=nobody.target):
            control.put("key", b"")


@pytest.mark.parametrize("call", ["put", "jobs", "reports", "events"])
def test_calls_of_a_closed_client_say_so(daemon: DaemonProcess, call: str) -> None:
    control = Control(daemon.endpoint, job="j")
    control.put("key", b"")
    # As where a call goes over to gRPC because its line broke, and the client is closed meanwhile.
    control._kv_pool.call = lambda *_: None  # type: ignore[method-assign,assignment]
    control.close()
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: control.put("key", b"1"),
        "jobs": control.jobs,
        "reports": control.reports,
        "events": control.events,
    }
    with pytest.raises(errors.CoordinatorUnavailable, match="this client has been closed"):
        calls[call]()


def test_closing_wakes_who_waits(daemon: DaemonProcess, job_name: str) -> None:
    control = Control(daemon.endpoint, job=job_name)
    outcome: list[BaseException] = []
    control.put("ready", b"")

    def wait() -> None:
        try:
            control.get("never", wait=True)
        except errors.CoordinatorUnavailable as error:
            outcome.append(error)

    waiting = threading.Thread(target=wait)
    waiting.start()
    control.close()
    waiting.join(10)
    assert len(outcome) == 1
    control.close()


def test_connect_reads_the_environment(
    daemon: DaemonProcess, job_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert daemon.endpoint.token is not None
    monkeypatch.setenv("ALLHANDS_URL", f"{daemon.endpoint.address.url}/{job_name}")
    monkeypatch.setenv("ALLHANDS_TOKEN", daemon.endpoint.token)
    with connect() as control:
        control.put("key", b"value")
        assert control.job_name == job_name
        assert control.get("key") == b"value"


def test_a_job_comes_with_the_coordinators_clock(
    control: Control, join_job: Callable[[int, int], RawMember]
) -> None:
    """Reports of ranks are dated by it: a report may be seconds older than the status."""
    join_job(0, 1)
    before = time.monotonic()  # the same clock: that of this host
    clock = control.job().clock
    assert clock is not None
    assert before - 0.1 <= clock <= time.monotonic()
