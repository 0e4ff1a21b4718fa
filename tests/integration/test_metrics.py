"""Metrics of a daemon: who may read them, their form, their documents, and what they count."""

import json
import re
import shutil
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from allhands.testing.daemon import DaemonProcess, run_daemon
from allhands.testing.poll import poll_until
from allhands_proto.v1 import coordinator_pb2 as wire
from support.http_pages import Page, fetch, find_url

ROOT = Path(__file__).parents[2]
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[DaemonProcess]:
    """A daemon with an HTTP port, a log and an audit log."""
    (tmp_path / "runtime").mkdir(mode=0o700)
    options = ("--http", "127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    with run_daemon(
        tmp_path / "runtime", *options, "--audit-log", str(tmp_path / "audit")
    ) as daemon:
        yield daemon


def scrape(daemon: DaemonProcess, token: str = "", accept: str = "") -> Page:
    return fetch(find_url(daemon), "/metrics", token or daemon.notice.token, accept)


def read_metrics(daemon: DaemonProcess) -> dict[str, Metric]:
    page = scrape(daemon)
    assert page.status == 200, page.text
    return {one.name: one for one in text_string_to_metric_families(page.text)}


def get_value(daemon: DaemonProcess, name: str, **labels: str) -> float:
    """Return the value of a sample; counters are named with their `_total`."""
    for family in read_metrics(daemon).values():
        for sample in family.samples:
            if sample.name == name and labels.items() <= sample.labels.items():
                return sample.value
    raise AssertionError(f"{name} has no sample with {labels}")


def create_token(daemon: DaemonProcess, *arguments: str) -> str:
    done = daemon.run_command("token", "create", *arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# ---------------------------------------------------------------- access


def test_they_are_for_callers_with_the_right_to_read_all_jobs(
    watched: DaemonProcess, tmp_path: Path
) -> None:
    url = find_url(watched)
    without = fetch(url, "/metrics")
    assert (without.status, without.headers["www-authenticate"]) == (401, "Bearer")
    assert "Authorization: Bearer TOKEN" in without.text
    assert scrape(watched, "wrong").status == 401
    assert scrape(watched, "aht_nobody_nothing").status == 401
    of_one_job = create_token(watched, "--job", "j", "--verbs", "read")
    refused = scrape(watched, of_one_job)
    assert refused.status == 403
    assert "is for job j, and this call is about all jobs" in refused.text
    may_only_join = create_token(watched, "--job", "*", "--verbs", "join")
    assert scrape(watched, may_only_join).status == 403
    reader = create_token(watched, "--job", "*", "--verbs", "read")
    assert scrape(watched, reader).status == 200
    assert get_value(watched, "allhands_refused_callers_total", reason="no_token") == 1
    assert get_value(watched, "allhands_refused_callers_total", reason="wrong_token") == 2
    assert get_value(watched, "allhands_refused_callers_total", reason="permission") == 2
    audited = [json.loads(line) for line in (tmp_path / "audit").read_text().splitlines()]
    scrapes = [one for one in audited if one["method"] == "GET /metrics"]
    assert scrapes[0]["outcome"].startswith("refused: ")
    assert (scrapes[-1]["who"], scrapes[-1]["outcome"]) == ("cluster token", "allowed")
    assert not any(watched.notice.token in line for line in map(json.dumps, audited))


def test_where_callers_show_certificates_metrics_want_one_and_health_does_not(
    tmp_path: Path,
) -> None:
    (tmp_path / "runtime").mkdir(mode=0o700)
    folder = tmp_path / "tls"
    made = subprocess.run(
        [sys.executable, "-m", "allhands.cli.main", "token", "init", str(folder)],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    ca, worker = folder / "daemon/ca.crt", folder / "worker"
    options = ("--tls-dir", str(folder / "daemon"), "--http", "127.0.0.1:0")
    with run_daemon(tmp_path / "runtime", *options) as daemon:
        url, token = find_url(daemon), daemon.notice.token
        bare = ssl.create_default_context(cafile=ca)
        assert fetch(url, "/readyz", tls=bare).status == 200
        refused = fetch(url, "/metrics", token, tls=bare)
        assert (refused.status, refused.text) == (401, "callers have to show a certificate\n")
        shown = ssl.create_default_context(cafile=ca)
        shown.load_cert_chain(worker / "tls.crt", worker / "tls.key")
        page = fetch(url, "/metrics", token, tls=shown)
        assert page.status == 200
        assert 'allhands_refused_callers_total{reason="certificate"} 1.0' in page.text


# ---------------------------------------------------------------- form


def test_both_formats_are_read_by_the_parsers_of_prometheus(watched: DaemonProcess) -> None:
    plain = scrape(watched)
    assert plain.headers["content-type"].startswith("text/plain; version=")
    assert list(text_string_to_metric_families(plain.text))
    asked = scrape(watched, accept=OPENMETRICS)
    assert asked.headers["content-type"].startswith("application/openmetrics-text")
    assert asked.text.endswith("# EOF\n")
    assert list(openmetrics.text_string_to_metric_families(asked.text))


def test_promtool_finds_nothing_to_complain_of(watched: DaemonProcess) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: it comes with Debian's prometheus")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=scrape(watched).text,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def read_document() -> dict[str, tuple[str, set[str]]]:
    """Return type and labels of each metric in the document, by name."""
    rows = re.findall(
        r"^\| `(allhands_\w+)` \| (\w+) \|([^|]*)\|", (ROOT / "docs/metrics.md").read_text(), re.M
    )
    return {name: (kind, set(re.findall(r"`(\w+)`", labels))) for name, kind, labels in rows}


async def test_the_document_has_each_metric_with_its_type_and_labels(
    watched: DaemonProcess, call_at: Callable[..., Any]
) -> None:
    caller = call_at(f"127.0.0.1:{watched.notice.port}", watched.notice.token)
    await caller.join("j", 0, 2)
    await caller.call("Set", wire.SetRequest(job="j", key="k", value=b"v"))
    await caller.refused("Get", wire.GetRequest(job="j", key="none"))
    shown = {
        f"{one.name}_total" if one.type == "counter" else one.name: (
            one.type,
            {label for sample in one.samples for label in sample.labels} - {"le"},
        )
        for one in read_metrics(watched).values()
        if one.name.startswith("allhands_")
    }
    documented = read_document()
    assert documented.keys() == shown.keys()
    for name, (kind, labels) in shown.items():
        assert documented[name][0] == kind, name
        if "skew" not in name:  # which takes members that make calls
            assert documented[name][1] == labels, name


def test_the_dashboard_asks_for_documented_metrics_alone() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/allhands.json").read_text())
    asked = " ".join(target["expr"] for panel in dashboard["panels"] for target in panel["targets"])
    names = {name.removesuffix("_bucket") for name in re.findall(r"allhands_\w+", asked)}
    assert names
    assert names <= read_document().keys()


def test_no_label_is_of_ranks_and_base_units_end_the_names(watched: DaemonProcess) -> None:
    for name, (_, labels) in read_document().items():
        assert not labels & {"rank", "member", "host", "pid"}, name
        assert not re.search(r"_(ms|us|milliseconds|kb|mib|percent)(_|$)", name), name


# ---------------------------------------------------------------- content


async def test_a_lost_member_is_counted_by_what_explains_the_loss(
    watched: DaemonProcess, call_at: Callable[..., Any]
) -> None:
    caller = call_at(f"127.0.0.1:{watched.notice.port}", watched.notice.token)
    first = await caller.join("j", 0, 2)
    second = await caller.join("j", 1, 2)
    await first.hear("world_formed")
    assert get_value(watched, "allhands_job_members", job="j") == 2
    assert get_value(watched, "allhands_jobs", state="running") == 1
    before = sum(one.value for one in read_metrics(watched)["allhands_lost_members"].samples)
    assert before == 0
    second.stream.cancel()
    lost = (await first.hear("member_lost")).member_lost
    assert get_value(watched, "allhands_job_members", job="j") == 1
    assert get_value(watched, "allhands_jobs", state="degraded") == 1
    state = {
        sample.labels["state"]
        for sample in read_metrics(watched)["allhands_lost_members"].samples
        if sample.value == 1
    }
    assert len(state) == 1
    assert lost.verdict.absent[0].text
    assert get_value(watched, "allhands_events_total", kind="lost") == 1


async def test_appends_to_the_log_are_timed(
    watched: DaemonProcess, call_at: Callable[..., Any]
) -> None:
    caller = call_at(f"127.0.0.1:{watched.notice.port}", watched.notice.token)
    name = "allhands_log_append_duration_seconds_count"
    before = get_value(watched, name)
    for number in range(3):
        await caller.call("Set", wire.SetRequest(job="j", key=f"k{number}", value=b"v"))
    assert get_value(watched, name) == before + 3
    assert get_value(watched, "allhands_log_info", engine="sqlite") == 1
    assert get_value(watched, "allhands_log_appended_bytes_total") > 0
    assert get_value(watched, "allhands_requests_total", kind="Set") == 3


COUNTED = """
import sys
import allhands as ah, numpy as np
ah.init_process_group(backend={"links": "socket"}.get(sys.argv[1], "shm"))
if sys.argv[1] == "hooks":
    ah.on_call(before=lambda call: None)
x = np.ones(2)
for _ in range(50):
    ah.all_reduce(x)
ah.all_reduce(x, async_op=True).wait()
ah.send(x, 1) if ah.get_rank() == 0 else ah.recv(x, 0)
ah.destroy_process_group()
"""


@pytest.mark.parametrize("way", ["shared memory", "links", "hooks"])
def test_operations_of_ranks_are_counted(watched: DaemonProcess, tmp_path: Path, way: str) -> None:
    program = tmp_path / "program.py"
    program.write_text(COUNTED)
    url = watched.notice.url
    done = watched.run_command(
        *("run", "-n", "2", "--job", "train", "--coordinator", url),
        *(str(program), way),
    )
    assert done.returncode == 0, done.stderr

    def has_counted() -> bool:
        return get_value(watched, "allhands_job_operations_total", job="train") >= 100

    poll_until(has_counted, 30)
    assert get_value(watched, "allhands_jobs", state="ended") == 1
    # Of each rank: 50 calls, one that is waited for later, and a message.
    nbytes = get_value(watched, "allhands_job_operations_bytes_total", job="train")
    assert nbytes == 2 * 52 * 16
    seconds = get_value(watched, "allhands_job_operations_seconds_total", job="train")
    assert 0 < seconds < 60
