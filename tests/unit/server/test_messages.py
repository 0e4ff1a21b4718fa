"""Messages of the wire as the machine's values."""

from dataclasses import fields

from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_server.rpc import messages


def test_a_group_change_keeps_every_field() -> None:
    message = wire.GroupChangeRequest(
        job="j",
        member_id="m",
        group="g",
        kind="shrink",
        flag=True,
        wanted=1,
        returned=2,
        computed=3,
        number=4,
    )
    decoded = messages.decode_group_change(message)
    known = {field.name for field in wire.GroupChangeRequest.DESCRIPTOR.fields}
    assert known == {field.name for field in fields(decoded)}
    assert all(getattr(decoded, name) == getattr(message, name) for name in known)


def test_a_resume_keeps_every_field() -> None:
    message = wire.Resume(job="j", incarnation="i", member_id="m", proof=b"p", takes_batches=True)
    decoded = messages.decode_resume(message)
    names = {field.name for field in fields(decoded)}
    of_stream = {"takes_batches", "takes_conditions", "takes_members_left"}
    of_stream |= {"min_version", "max_version"}
    assert names == {field.name for field in wire.Resume.DESCRIPTOR.fields} - of_stream
    assert all(getattr(decoded, name) == getattr(message, name) for name in names)
