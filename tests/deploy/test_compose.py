"""The composition, and Prometheus and Grafana beside it."""

import json
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from allhands.testing.poll import poll_until
from support.deployments.pods import get_option
from support.deployments.stage import ROOT, Stage, open_stage
from support.http_pages import fetch
from support.served_daemon import find_free_port
from support.tls_contexts import open_context

FOLDER = ROOT / "deploy/monitoring"
BASE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
OVERLAY = yaml.safe_load((FOLDER / "compose.yml").read_text())
PROMETHEUS = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
SERVICES: dict[str, Any] = {**BASE["services"], **OVERLAY["services"]}
PORTS = (7070, 7071, 7072)


def list_mounts(service: str) -> dict[str, str]:
    """Return what is mounted in a service, by path inside."""
    pairs = (text.split(":") for text in SERVICES[service].get("volumes", ()))
    return {inside: source for source, inside, *_ in pairs}


def find_mounted(service: str, path: str) -> Path:
    """Return the file of the project that a service has at a path."""
    for inside, source in list_mounts(service).items():
        if path == inside or path.startswith(f"{inside}/"):
            return ROOT / source / path.removeprefix(inside).lstrip("/")
    raise AssertionError(f"nothing is mounted at {path} in {service}")


def test_the_files_together_are_a_composition() -> None:
    check = Path(sys.executable).with_name("check-jsonschema")
    files = (ROOT / "docker-compose.yml", FOLDER / "compose.yml")
    schema = "--builtin-schema=vendor.compose-spec"
    done = subprocess.run([check, schema, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    volumes = {*BASE["volumes"], *OVERLAY["volumes"]}
    for name, service in SERVICES.items():
        for source in list_mounts(name).values():
            assert (ROOT / source).exists() if source.startswith("./") else source in volumes
        assert set(service.get("depends_on", ())) <= set(SERVICES), name


def test_prometheus_scrapes_the_coordinator_with_what_it_can_read() -> None:
    [scrape] = PROMETHEUS["scrape_configs"]
    [[target]] = [one["targets"] for one in scrape["static_configs"]]
    service, _, port = target.partition(":")
    http = get_option(SERVICES[service]["command"], "--http")
    assert http.rpartition(":")[2] == port
    assert scrape["tls_config"]["server_name"] == BASE["services"]["credentials"]["command"][2]
    for path in (scrape["authorization"]["credentials_file"], scrape["tls_config"]["ca_file"]):
        [kept] = [one for inside, one in list_mounts("prometheus").items() if inside in path]
        assert kept == "shared-credentials"
    assert SERVICES["prometheus"]["user"] == BASE["x-closed"]["user"]
    config = get_option(SERVICES["prometheus"]["command"], "--config.file")
    assert find_mounted("prometheus", config) == FOLDER / "prometheus.yml"


def test_grafana_asks_prometheus_and_shows_the_dashboard() -> None:
    provisioning = "/etc/grafana/provisioning"
    source = find_mounted("grafana", f"{provisioning}/datasources/allhands.yml")
    [datasource] = yaml.safe_load(source.read_text())["datasources"]
    assert datasource["url"] == "http://prometheus:9090"
    shown = find_mounted("grafana", f"{provisioning}/dashboards/allhands.yml")
    [provider] = yaml.safe_load(shown.read_text())["providers"]
    dashboard = find_mounted("grafana", provider["options"]["path"]) / "allhands.json"
    [variable] = json.loads(dashboard.read_text())["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", datasource["type"])


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """The coordinator of the composition, with the credentials that it makes."""
    made = [ROOT / "container/make-credentials.sh", tmp_path / "shared", tmp_path / "own"]
    for folder in made[1:]:
        folder.mkdir()
    subprocess.run([*made, "coordinator"], check=True, capture_output=True)
    with open_stage(tmp_path, "coordinator", PORTS) as opened:
        service = SERVICES["coordinator"]
        command = [word.replace("${ALLHANDS_PORT:-7070}", "7070") for word in service["command"]]
        command = [word.replace("${ALLHANDS_KV_PORT:-7071}", "7071") for word in command]
        opened.start_daemon(["allhands", *command], service["environment"], get_paths(tmp_path))
        yield opened


def get_paths(folder: Path) -> dict[str, str]:
    names = {"/data": "data", "/credentials/shared": "shared", "/credentials/own": "own"}
    return {there: str(folder / here) for there, here in names.items()}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_the_coordinator_answers_what_is_asked_of_it(stage: Stage, tmp_path: Path) -> None:
    [scrape] = PROMETHEUS["scrape_configs"]
    url = f"https://127.0.0.1:{stage.get_port(7072)}"
    tls = open_context(tmp_path / "shared/ca.pem")
    token = (tmp_path / "shared/token").read_text().strip()
    assert fetch(url, "/readyz", tls=tls).status == 200
    assert fetch(url, scrape["metrics_path"], tls=tls).status == 401
    assert "allhands_ready 1.0" in fetch(url, scrape["metrics_path"], token, tls=tls).text
    check = SERVICES["coordinator"]["healthcheck"]["test"]
    done = stage.run_beside(stage.started[0], *(stage.translate(one, {}) for one in check[1:]))
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("prometheus") is None, reason="Prometheus is not installed")
def test_prometheus_itself_scrapes_it(stage: Stage, tmp_path: Path) -> None:
    text = (FOLDER / "prometheus.yml").read_text().replace("15s", "1s")
    config = tmp_path / "prometheus.yml"
    config.write_text(stage.translate(text, get_paths(tmp_path)))
    own = find_free_port()
    listen = [f"--web.listen-address=127.0.0.1:{own}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"]
    running = subprocess.Popen(
        ["prometheus", f"--config.file={config}", *listen],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        poll_until(lambda: is_up(own), 30)
    finally:
        running.kill()
        running.wait()


def is_up(port: int) -> bool:
    """Return whether Prometheus has scraped a coordinator that is ready."""
    query = f"http://127.0.0.1:{port}/api/v1/query?query=allhands_ready"
    try:
        with urllib.request.urlopen(query, timeout=5) as reply:
            found = json.load(reply)["data"]["result"]
    except OSError:
        return False
    return [one["value"][1] for one in found] == ["1"]
