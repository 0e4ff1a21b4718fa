"""First messages of a session and of its resumption."""

from allhands.coordinator.protocol_versions import VersionRefused
from allhands.errors import JoinRefused
from allhands_proto.session_proof import prove_membership
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.versions import explain_mismatch, write_versions


def check_joined(joined: wire.Joined, target: str) -> None:
    """Check that the coordinator at a target has a version in common with this worker.

    Raises:
        JoinRefused: it has none.
    """
    if problem := explain_mismatch(joined, "this worker", f"the coordinator at {target}"):
        raise JoinRefused(problem)


def make_resume(job: str, joined: wire.Joined) -> wire.Resume:
    """Return the request to resume a session, with the proof of its membership."""
    proof = prove_membership(joined.secret, joined.incarnation, joined.member_id)
    resume = wire.Resume(
        job=job,
        incarnation=joined.incarnation,
        member_id=joined.member_id,
        proof=proof,
        takes_batches=True,
        takes_conditions=True,
        takes_members_left=True,
    )
    write_versions(resume)
    return resume


def check_resumed(resumed: wire.Resumed) -> None:
    """Check that a restarted coordinator has a version in common with this worker.

    Raises:
        VersionRefused: it has none.
    """
    if problem := explain_mismatch(resumed, "this worker", "the restarted coordinator"):
        raise VersionRefused(problem)
