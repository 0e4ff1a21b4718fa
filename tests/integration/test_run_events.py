"""`allhands run --on-event` and `--webhook`: real jobs whose events reach their sinks."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allhands.cli.documents import make_event_fields
from allhands.coordinator.event_calls import JobEvent
from programs import launched, launched_ranks
from support.ranks.launchers import Start, as_script, ends
from support.webhook import Webhook, run_webhook


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with run_webhook() as running:
        yield running


def read_events(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_both_sinks_get_the_events_of_a_job_in_order(
    run: Start, tmp_path: Path, hook: Webhook
) -> None:
    program = as_script(launched_ranks.join_and_leave)
    command = ("--on-event", "cat >> events")
    running = run("-n", "2", "--job", "train", *command, "--webhook", hook.url, *program)
    assert running.status() == 0, running.errors
    events = read_events(tmp_path / "events")
    kinds = [one["event"] for one in events]
    assert kinds.count("joined") == kinds.count("left") == 2
    assert kinds.index("joined") < kinds.index("formed") < kinds.index("left")
    assert [one["number"] for one in events] == sorted(one["number"] for one in events)
    assert {one["job"] for one in events} == {"train"}
    fields = make_event_fields(JobEvent(1, 0.0, "", "", None, "", 0, ""))
    assert all(set(one) == {"kind", "version", "job", *fields} for one in events)
    assert hook.posted == events


def test_a_stall_and_the_abort_that_follows_are_events(
    run: Start, tmp_path: Path, hook: Webhook
) -> None:
    program = as_script(launched_ranks.stall_at_first, 1)
    policy = ("--on-stall", "abort", "--stall-after", "0.5", "--grace", "1")
    running = run("-n", "2", *policy, *program, ALLHANDS_WEBHOOK=hook.url)
    assert running.status() == 124
    [stalled] = [one for one in hook.posted if one["event"] == "stalled"]
    [aborted] = [one for one in hook.posted if one["event"] == "aborted"]
    assert "on rank 0 for rank 1" in stalled["text"]
    assert stalled["by"] == "allhands run"
    assert stalled["text"] in aborted["text"]


def test_a_sink_that_fails_is_told_once_and_changes_nothing(run: Start, hook: Webhook) -> None:
    hook.status = 500
    sinks = ("--on-event", "exit 3", "--webhook", hook.url)
    running = run("-n", "2", *sinks, *as_script(launched_ranks.join_and_leave))
    assert running.status() == 0
    told = [line for line in running.errors if "the job goes on" in line]
    assert len(told) == 2, running.errors
    assert "--on-event: the command ended with status 3" in told[0]
    assert "answered with status 500" in told[1]
    assert "sesame" not in " ".join(running.errors)
    assert len(hook.posted) > 2


def test_a_command_that_hangs_does_not_hold_up_the_end(run: Start, tmp_path: Path) -> None:
    command = ("--on-event", "echo $$ > pid; exec sleep 600")
    running = run("-n", "2", *command, *as_script(launched_ranks.join_and_leave))
    assert running.status() == 0
    assert ends(int((tmp_path / "pid").read_text()))


def test_ranks_do_not_get_the_address(run: Start, hook: Webhook) -> None:
    running = run("-n", "1", "--no-python", "env", ALLHANDS_WEBHOOK=hook.url)
    assert running.status() == 0
    variables = running.output()
    assert any("WORLD_SIZE=1" in one for one in variables)
    assert not any("sesame" in one for one in variables)


def test_what_is_no_address_is_refused_before_anything_is_started(run: Start) -> None:
    running = run("-n", "1", "--webhook", "ftp://secret", *as_script(launched.show_a_word))
    assert running.status() == 2
    assert "--webhook" in " ".join(running.errors)
    assert running.output() == []
