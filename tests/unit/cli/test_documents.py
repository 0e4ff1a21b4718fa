"""Documents of `-o json` and `-o yaml` have the fields that docs/output.md lists."""

import json
from dataclasses import replace

import pytest
import yaml

from allhands.cli.documents import (
    make_diagnosis_fields,
    make_event_fields,
    make_groups_fields,
    make_jobs_fields,
    make_limits_fields,
    make_tokens_fields,
)
from allhands.cli.render import Output, format_document
from allhands.coordinator.diagnosis import (
    CallPosition,
    Diagnosis,
    GroupDiagnosis,
    PendingOperation,
    RankDiagnosis,
    Straggler,
)
from allhands.coordinator.event_calls import JobEvent
from allhands.coordinator.limit_calls import CoordinatorLimits, LimitStatus
from allhands.coordinator.status import JobStatus, MemberStatus
from allhands.coordinator.token_calls import TokenStatus
from allhands_proto.statuses import (
    FailureStatus,
    GroupStatus,
    GroupWaits,
    LatenessStatus,
    OperationStatus,
    RankWaits,
    WaitPeriod,
)
from support.documents.output_fields import check_fields

NOW = 1_750_000_000.5
TIME = {"time": "2025-06-15T15:06:40.500Z"}
FAILURE = FailureStatus(1, "dead", "rank 1 died", 3.5, "Traceback")
GROUP = GroupStatus("dp", (0, 1))
MEMBER = MemberStatus(
    rank=0,
    member_id="m0",
    host="node-a",
    pid=4000,
    address="10.0.0.1:5000",
    label="loader",
    state="joined",
    reason="",
    last_heartbeat=0.25,
    operations=(OperationStatus("dp", "reduce", 9, 8, 0.5),),
    lateness=(LatenessStatus("dp", 64, 0.01, 0.02, 3),),
)
JOB = JobStatus(
    job="digits",
    state="running",
    epoch=3,
    world_size=2,
    members=(MEMBER,),
    groups=(GROUP,),
    heartbeat_window=5.0,
    keys=1,
    incarnation="i",
    failures=(FAILURE,),
    ended=1.5,
)
DIAGNOSIS = Diagnosis(
    "digits",
    "running",
    (
        RankDiagnosis(
            rank=0,
            host="node-a",
            pid=4000,
            absence="",
            waits=(PendingOperation("dp", 9, "reduce", "reduce()", 2.0, (1,), "x", "a.py:1", 4.0),),
            idle=0.0,
            last="",
            stack="",
        ),
    ),
    (GroupDiagnosis("dp", (CallPosition(9, "reduce", (0,)), CallPosition(8, "", (1,))), (2,)),),
    (Straggler(1, "dp", 64, 0.01, 0.02, 3),),
    (FAILURE,),
    waits=(
        GroupWaits(
            "dp",
            64,
            (RankWaits(1, 3, 0.5, 0.1),),
            (WaitPeriod(60.0, 60.0, 64, 0.6, 0.02, (RankWaits(1, 3, 0.5),)),),
        ),
    ),
)
DOCUMENTS = {
    "JobList": make_jobs_fields([JOB], NOW),
    "GroupList": make_groups_fields([(JOB, GROUP)], NOW),
    "Diagnosis": make_diagnosis_fields(DIAGNOSIS, NOW),
    "JobEvent": make_event_fields(JobEvent(4, NOW, "lost", "rank 1 is lost", 1, "dead", 2, "")),
    "LimitList": {
        **TIME,
        **make_limits_fields(CoordinatorLimits((LimitStatus("jobs", 9, 1, "j"),), 1 << 20)),
    },
    "TokenList": {
        **TIME,
        **make_tokens_fields([TokenStatus("id", "*", ("read",), NOW, 0, 2)]),
    },
}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_a_document_has_the_documented_fields(kind: str) -> None:
    check_fields(json.loads(format_document(kind, DOCUMENTS[kind], Output.JSON)), is_full=True)


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_yaml_has_the_same_fields_as_json(kind: str) -> None:
    as_yaml, as_json = (
        format_document(kind, DOCUMENTS[kind], form) for form in (Output.YAML, Output.JSON)
    )
    assert yaml.safe_load(as_yaml) == json.loads(as_json)


def test_a_field_that_is_not_documented_is_found_out() -> None:
    document = {"kind": "KeyPut", "version": 1, **TIME, "key": "k", "revision": 1}
    check_fields(document)
    with pytest.raises(AssertionError, match="not documented"):
        check_fields({**document, "ttl": 1})
    with pytest.raises(AssertionError, match="lacks"):
        check_fields({name: document[name] for name in document if name != "key"})
    with pytest.raises(AssertionError, match="revision is '1'"):
        check_fields({**document, "revision": "1"})


def test_an_age_stands_beside_the_time() -> None:
    job = DOCUMENTS["JobList"]["jobs"][0]
    assert (job["ended_age_seconds"], job["ended_time"]) == (1.5, "2025-06-15T15:06:39.000Z")
    [failure] = job["failures"]
    assert failure["failure_time"] == "2025-06-15T15:06:37.000Z"
    [first, second] = DOCUMENTS["GroupList"]["groups"][0]["members"]
    assert first["heartbeat_time"] == "2025-06-15T15:06:40.250Z"
    assert (second["host"], second["pid"], second["heartbeat_time"]) == ("", None, None)


@pytest.mark.parametrize("later", [0.0, 3.0])
def test_the_begin_of_an_ended_ranks_state_does_not_move_with_the_request(later: float) -> None:
    gone = replace(MEMBER, state="left", gone=10.0 + later)
    job = replace(JOB, state="ended", members=(gone,))
    [told] = make_jobs_fields([job], NOW + later)["jobs"]
    [operation] = told["members"][0]["operations"]
    assert operation["since_time"] == "2025-06-15T15:06:30.000Z"
    assert operation["elapsed_seconds"] == 0.5
    [group] = make_groups_fields([(job, GROUP)], NOW + later)["groups"]
    assert group["members"][0]["since_time"] == "2025-06-15T15:06:30.000Z"


def test_a_wait_began_its_age_before_the_diagnosis() -> None:
    [wait] = DOCUMENTS["Diagnosis"]["ranks"][0]["waits"]
    assert (wait["elapsed_seconds"], wait["since_time"]) == (2.0, "2025-06-15T15:06:36.500Z")


def test_documents_of_a_stream_are_told_apart() -> None:
    both = [format_document("KeyCount", {"count": n}, Output.JSON, in_stream=True) for n in (1, 2)]
    assert [json.loads(line)["count"] for line in "".join(both).splitlines()] == [1, 2]
    both = [format_document("KeyCount", {"count": n}, Output.YAML, in_stream=True) for n in (1, 2)]
    assert [one["count"] for one in yaml.safe_load_all("".join(both))] == [1, 2]


def test_yaml_reaches_a_terminal_without_control_codes() -> None:
    shown = format_document("KeyList", {"keys": ["\x1b[2J", "a\nb", "é"]}, Output.YAML)
    assert all(sign.isprintable() or sign == "\n" for sign in shown)
    assert yaml.safe_load(shown)["keys"] == ["\x1b[2J", "a\nb", "é"]
