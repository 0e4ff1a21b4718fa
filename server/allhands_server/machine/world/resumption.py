"""Resumption of sessions: members come back after a break, or after the coordinator's restart."""

from allhands_proto.session_proof import is_proof
from allhands_server.machine.effects import (
    Effect,
    EndSession,
    Newcomers,
    Push,
    Resumed,
)
from allhands_server.machine.formatting import quote
from allhands_server.machine.member_messages import Resume
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.world.member import Member
from allhands_server.machine.world.world import World


def watch_restored(world: World, now: float) -> None:
    """Give the members of a restored world one fresh window to come back."""
    for member in world.present.values():
        member.heard_at = now
        world.failure_detector.watch(member, now)


def find_resuming(world: World, resume: Resume) -> Member:
    """Return the member that wants its session back.

    Raises:
        Refused: there is none, it is gone, or the proof is wrong.
    """
    if world.is_forming or world.incarnation != resume.incarnation:
        text = f"job {world.job} has no member {quote(resume.member_id)} any more"
        raise Refused(Status.NOT_FOUND, text)
    member = world.find_member(resume.member_id)
    if not is_proof(resume.proof, world.secret, world.incarnation, resume.member_id):
        text = f"this is not {member}: the proof of the world's secret is wrong"
        raise Refused(Status.UNAUTHENTICATED, text)
    return member


def resume_session(world: World, member: Member, session: int, now: float) -> list[Effect]:
    """Let a member go on with a new session; send the news since its arrival."""
    effects: list[Effect] = []
    if not member.is_broken:
        text = f"{member} has resumed its session on another stream"
        effects.append(EndSession(member.session, Refusal(Status.UNAVAILABLE, text)))
    world.failure_detector.stop(member)
    member.session, member.is_broken, member.is_away = session, False, False
    member.unanswered_since = None
    told = [Resumed(world.epoch, member.received), *world.list_news(member)]
    effects += [Push(session, one) for one in told]
    if world.newcomers:
        effects.append(Push(session, Newcomers(len(world.newcomers))))
    world.on_heard(member, now)
    world.failure_detector.watch(member, now)
    text = f"{member} has resumed its session"
    report = world.events.log("resumed", text, now, rank=member.rank)
    return [*effects, report]
