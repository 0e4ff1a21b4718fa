"""Sinks of events: what they deliver, and how a failure is told."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from allhands.launcher.event_sinks import CommandSink, DeliveryFailed, WebhookSink
from allhands.testing.poll import poll_until
from support.ranks.addresses import free_port
from support.ranks.launchers import ends
from support.webhook import Webhook, run_webhook

DOCUMENT = json.dumps({"kind": "lost", "text": "x" * 100_000}).encode()


@pytest.fixture
def hook() -> Iterator[Webhook]:
    with run_webhook() as running:
        yield running


def test_a_command_has_the_event_on_its_standard_input(tmp_path: Path) -> None:
    CommandSink(f"cat > '{tmp_path}/event'").deliver(DOCUMENT, 10)
    assert (tmp_path / "event").read_bytes() == DOCUMENT


def test_a_command_need_not_read_it() -> None:
    CommandSink("true").deliver(DOCUMENT, 10)


def test_the_status_of_a_command_that_fails_is_told() -> None:
    with pytest.raises(DeliveryFailed, match="ended with status 3"):
        CommandSink("exit 3").deliver(DOCUMENT, 10)


def test_a_command_that_takes_too_long_is_killed_with_its_children(tmp_path: Path) -> None:
    command = f"sleep 600 & echo $! > '{tmp_path}/pid'; wait"
    with pytest.raises(DeliveryFailed, match=r"did not end within 0\.5 s"):
        CommandSink(command).deliver(b"{}", 0.5)
    assert ends(int((tmp_path / "pid").read_text()))


def test_closing_ends_a_command_that_is_under_way(tmp_path: Path) -> None:
    sink, failed = CommandSink(f"touch '{tmp_path}/runs'; sleep 600"), threading.Event()

    def deliver() -> None:
        with pytest.raises(DeliveryFailed):
            sink.deliver(b"{}", 60)
        failed.set()

    thread = threading.Thread(target=deliver)
    thread.start()
    poll_until((tmp_path / "runs").exists)
    sink.close()
    thread.join(30)
    assert failed.is_set()


def test_a_command_that_is_closed_while_it_starts_is_killed_too() -> None:
    sink = CommandSink("sleep 600")
    sink.close()
    with pytest.raises(DeliveryFailed):
        sink.deliver(b"{}", 60)


def test_a_webhook_gets_the_event_as_json(hook: Webhook) -> None:
    WebhookSink(hook.url).deliver(DOCUMENT, 10)
    assert hook.posted == [json.loads(DOCUMENT)]
    assert hook.types == ["application/json"]


@pytest.mark.parametrize("status", [302, 404, 500])
def test_an_answer_that_is_no_success_is_told_without_the_address(
    hook: Webhook, status: int
) -> None:
    hook.status, hook.location = status, hook.url
    sink = WebhookSink(hook.url)
    with pytest.raises(DeliveryFailed, match=f"answered with status {status}") as failed:
        sink.deliver(DOCUMENT, 10)
    assert "sesame" not in f"{failed.value} {sink.name} {failed.value.__cause__}"


def test_an_address_where_nothing_listens_is_told_without_its_path() -> None:
    sink = WebhookSink(f"http://127.0.0.1:{free_port()}/hooks/sesame")
    with pytest.raises(DeliveryFailed, match=r"cannot be reached: .*refused") as failed:
        sink.deliver(DOCUMENT, 10)
    assert "sesame" not in f"{failed.value} {sink.name}"


@pytest.mark.parametrize(
    "url", ["", "host/path", "file:///etc/passwd", "http://", "https://user:secret@host/"]
)
def test_what_is_no_address_of_a_webhook_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="https://host/path") as refused:
        WebhookSink(url)
    assert "secret" not in str(refused.value)
