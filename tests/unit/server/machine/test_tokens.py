"""Tokens for jobs in the machine: made, used, over."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from allhands_server.machine.changes import CommitRecorder, JobCleared, NoRecorder
from allhands_server.machine.effects import Answer
from allhands_server.machine.refusals import Refused, Status
from allhands_server.machine.requests import CreateToken, ListTokens, RevokeToken
from allhands_server.machine.tokens import MOST_TOKENS, TokenChange, Tokens

DIGEST = hashlib.sha256(b"secret").digest()
NOW = 1000.0


def make_request(id: str = "a", **changes: object) -> CreateToken:
    values = {"verbs": ("join", "read"), "expires_at": 0.0, "max_joins": 0, "job": "j"} | changes
    return CreateToken(id=id, digest=DIGEST, at=NOW, **values)  # type: ignore[arg-type]


class World:
    def __init__(self) -> None:
        self.members: set[tuple[str, str]] = set()
        self.recorder = CommitRecorder()
        self.tokens = Tokens(self.recorder, lambda job, member: (job, member) in self.members)

    def create(self, id: str = "a", **changes: object) -> None:
        assert self.tokens.submit(1, make_request(id, **changes)) == [Answer(1, id)]

    def join(self, id: str, member: str, at: float = NOW) -> None:
        self.tokens.check_join(id, at)
        self.tokens.note_join(id, member)
        self.members.add(("j", member))


@pytest.fixture
def world() -> World:
    return World()


@contextmanager
def refused(status: Status, match: str) -> Iterator[None]:
    with pytest.raises(Refused, match=match) as caught:
        yield
    assert caught.value.refusal.status is status


def test_a_token_opens_its_job_to_its_verbs(world: World) -> None:
    world.create()
    world.tokens.check("a", DIGEST, NOW)
    world.tokens.check_call("a", "read", "j", NOW)
    world.tokens.check_call("a", "join", "j", NOW)
    with refused(Status.PERMISSION_DENIED, "needs write.*--verbs write"):
        world.tokens.check_call("a", "write", "j", NOW)
    with refused(Status.PERMISSION_DENIED, "is for job j, and this call is about job 'other'"):
        world.tokens.check_call("a", "read", "other", NOW)
    with refused(Status.PERMISSION_DENIED, "about all jobs"):
        world.tokens.check_call("a", "read", "", NOW)


def test_admin_is_every_verb_and_the_star_is_every_job(world: World) -> None:
    world.create(job="*", verbs=("admin",))
    for verb in ("read", "write", "join", "admin"):
        world.tokens.check_call("a", verb, "any", NOW)


def test_an_unknown_or_wrong_or_revoked_token_opens_nothing(world: World) -> None:
    world.create()
    with refused(Status.UNAUTHENTICATED, "'b' is not known"):
        world.tokens.check("b", DIGEST, NOW)
    with refused(Status.UNAUTHENTICATED, "'a' is not known"):
        world.tokens.check("a", hashlib.sha256(b"guess").digest(), NOW)
    assert world.tokens.submit(2, RevokeToken("a")) == [Answer(2, "a")]
    with refused(Status.UNAUTHENTICATED, "revoked"):
        world.tokens.check_call("a", "read", "j", NOW)
    with refused(Status.NOT_FOUND, "no token 'a'"):
        world.tokens.submit(3, RevokeToken("a"))


def test_an_expired_token_holds_for_members_who_joined_with_it_and_for_no_join(
    world: World,
) -> None:
    world.create(expires_at=NOW + 10)
    world.join("a", "m1", NOW + 9)
    world.tokens.check("a", DIGEST, NOW + 10)
    world.tokens.check_call("a", "join", "j", NOW + 1e6)
    with refused(Status.UNAUTHENTICATED, "has expired"):
        world.tokens.check_join("a", NOW + 10)
    world.members.clear()
    with refused(Status.UNAUTHENTICATED, "has expired"):
        world.tokens.check("a", DIGEST, NOW + 10)
    world.tokens.check("a", DIGEST, NOW + 9)


def test_a_token_for_one_join_lets_one_member_in(world: World) -> None:
    world.create(max_joins=1)
    world.tokens.check_join("a", NOW)  # a join that fails elsewhere uses nothing up
    world.join("a", "m1")
    with refused(Status.UNAUTHENTICATED, "is for 1 join, and has been used"):
        world.tokens.check_join("a", NOW)
    world.tokens.check_call("a", "join", "j", NOW)
    world.members.clear()
    with refused(Status.UNAUTHENTICATED, "has been used"):
        world.tokens.check_call("a", "read", "j", NOW)


@pytest.mark.parametrize(
    "change",
    [
        {"verbs": ()},
        {"verbs": ("reads",)},
        {"job": ""},
        {"job": "two words"},
        {"max_joins": -1},
        {"expires_at": -1.0},
        {"expires_at": float("nan")},
        {"id": ""},
    ],
)
def test_a_token_that_makes_no_sense_is_refused(world: World, change: dict[str, object]) -> None:
    with refused(Status.INVALID_ARGUMENT, "token|job"):
        world.tokens.submit(1, make_request(**change))  # type: ignore[arg-type]
    assert world.recorder.is_settled


def test_expired_tokens_make_room(world: World) -> None:
    for number in range(MOST_TOKENS):
        world.create(f"t{number}", expires_at=NOW if number == 5 else 0.0)
    world.create("new")
    with refused(Status.RESOURCE_EXHAUSTED, "tokens"):
        world.tokens.submit(1, make_request("one more"))
    [answer] = world.tokens.submit(1, ListTokens())
    assert isinstance(answer, Answer)
    assert isinstance(answer.reply, tuple)
    assert {view.id for view in answer.reply} >= {"new", "t4", "t6"}
    assert "t5" not in {view.id for view in answer.reply}


def test_the_changes_make_the_same_tokens_again(world: World) -> None:
    world.create(max_joins=2)
    world.create("b")
    world.create("c")
    world.join("a", "m1")
    world.tokens.submit(1, RevokeToken("b"))
    again = Tokens(NoRecorder(), lambda job, member: (job, member) in world.members)
    changes: list[TokenChange] = list(world.tokens.list_changes())
    for change in changes:
        again.apply(change)
    assert again.submit(1, ListTokens()) == world.tokens.submit(1, ListTokens())
    with refused(Status.UNAUTHENTICATED, "not known"):
        again.check("b", DIGEST, NOW)


def test_a_refused_token_is_gone_though_its_job_was_cleared_afterwards(world: World) -> None:
    world.create()
    world.recorder.take_commit()
    world.recorder.commit(JobCleared("j", 1, has_world=False), Ignoring())
    world.recorder.take_commit()
    world.recorder.undo_all()
    with refused(Status.UNAUTHENTICATED, "not known"):
        world.tokens.check("a", DIGEST, NOW)


class Ignoring:
    """State that changes in nothing."""

    def apply(self, change: JobCleared) -> None:
        pass

    def make_undo(self, change: JobCleared) -> None:
        return None


def test_a_token_that_the_log_refuses_is_gone_and_uses_hold(world: World) -> None:
    world.create()
    world.recorder.take_commit()
    world.recorder.on_durable()
    world.create("b")
    world.join("a", "m1")
    world.recorder.take_commit()
    world.recorder.undo_all()
    with refused(Status.UNAUTHENTICATED, "not known"):
        world.tokens.check("b", DIGEST, NOW)
    [answer] = world.tokens.submit(1, ListTokens())
    assert isinstance(answer, Answer)
    assert isinstance(answer.reply, tuple)
    assert [(view.id, view.joins) for view in answer.reply] == [("a", 1)]
