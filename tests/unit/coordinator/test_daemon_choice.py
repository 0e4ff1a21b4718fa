"""Which of several daemons is called next, and whether a failed call is made again."""

import grpc
import pytest

from allhands.coordinator import daemon_choice
from allhands.coordinator.daemon_choice import DaemonChoice, Decision
from allhands.coordinator.endpoint import Endpoint, configure_channel, parse_url

A, B, C = "127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_choice, "_last_chosen", {})


class Failure(grpc.RpcError):
    def __init__(
        self,
        details: str = "Socket closed",
        leader: str | None = None,
        code: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE,
    ) -> None:
        self._details, self._leader, self._code = details, leader, code

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> tuple[tuple[str, str], ...]:
        return () if self._leader is None else (("allhands-leader", self._leader),)


UNREACHABLE = Failure("failed to connect to all addresses; last error: ...")

UNKNOWN = Failure("errors resolving h:1: [field:hostname lookup error:...: Domain name not found]")


def make() -> DaemonChoice:
    endpoint = Endpoint(parse_url(f"ah://{A},{B},{C}/job"), "token")
    return DaemonChoice(configure_channel(endpoint))


def test_a_call_follows_to_the_leader() -> None:
    choice = make()
    assert choice.current.target == A
    assert choice.on_failure(choice.current, Failure(leader=C), "Add") is Decision.AGAIN
    assert choice.current.target == C
    assert [one.target for one in choice.list_others()] == [A, B]
    assert make().current.target == C  # what one client has found others need not search


def test_without_a_leader_one_daemon_after_the_other_is_asked() -> None:
    choice = make()
    targets = []
    for _ in range(4):
        targets.append(choice.current.target)
        assert choice.on_failure(choice.current, Failure(leader=""), "Add") is Decision.PAUSE
    assert targets == [A, B, C, A]
    assert make().current.target == B  # another channel goes on from there


@pytest.mark.parametrize(
    ("method", "expected"),
    [("Get", Decision.PAUSE), ("Add", Decision.FAIL), ("Set", Decision.FAIL), ("", Decision.FAIL)],
)
def test_what_may_have_been_done_is_done_again_only_where_that_does_no_harm(
    method: str, expected: Decision
) -> None:
    choice = make()
    assert choice.on_failure(choice.current, Failure(), method) is expected
    assert choice.current.target == B


@pytest.mark.parametrize("failure", [UNREACHABLE, UNKNOWN], ids=["unreachable", "unknown"])
def test_a_call_fails_when_no_daemon_can_be_reached(failure: Failure) -> None:
    choice = make()
    decisions = [choice.on_failure(choice.current, failure, "Add") for _ in range(3)]
    assert decisions == [Decision.PAUSE, Decision.PAUSE, Decision.FAIL]
    assert choice.on_failure(choice.current, Failure(), "Get") is Decision.PAUSE
    assert choice.on_failure(choice.current, UNREACHABLE, "Add") is Decision.PAUSE


def test_other_failures_are_the_callers() -> None:
    choice = make()
    failure = Failure(code=grpc.StatusCode.NOT_FOUND)
    assert choice.on_failure(choice.current, failure, "Get") is Decision.FAIL
    assert choice.current.target == A


def test_a_failure_of_before_does_not_move_what_has_moved() -> None:
    choice = make()
    called = choice.current
    choice.on_leader(C)
    assert choice.on_failure(called, UNREACHABLE, "Add") is Decision.PAUSE
    assert choice.current.target == C


def test_a_leader_beyond_this_host_is_not_sent_the_token_in_the_clear() -> None:
    choice = make()
    with pytest.raises(ValueError, match="without TLS"):
        choice.on_failure(choice.current, Failure(leader="192.0.2.1:7"), "Add")
    assert choice.on_failure(choice.current, Failure(leader="127.0.0.1:9"), "Add") is Decision.AGAIN
    assert choice.current.target == "127.0.0.1:9"
