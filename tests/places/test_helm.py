"""deploy/helm/allhands: the rendered documents are valid, agree, and are those of kubectl's way."""

from pathlib import Path

import kubernetes_validate
import pytest
from prometheus_client.parser import text_string_to_metric_families

from support.deployments.agreement import list_disagreements
from support.deployments.helm import NEEDED, Helm, find_helm
from support.deployments.pods import Document, list_pods, load_documents
from support.deployments.stage import ROOT, open_stage
from support.http_pages import fetch
from support.tls_contexts import make_credentials, open_context

CHART = ROOT / "deploy/helm/allhands"
PLAIN = load_documents(*sorted((ROOT / "deploy/kubernetes").glob("*.yaml")))
VERSION = "1.33"
OTHER = {
    "ports.grpc": "8070",
    "ports.kv": "8071",
    "ports.http": "8072",
    "drainSeconds": "90",
    "limits[0]": "memory=512MiB",
    "limits[1]": "job-keys=5000",
    "storage.className": "fast",
    "serviceMonitor.enabled": "true",
    "logLevel": "debug",
}


@pytest.fixture(scope="module")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Helm:
    folder = tmp_path_factory.mktemp("helm")
    program = find_helm(folder)
    if program is None:
        pytest.skip(NEEDED)
    return Helm(program, folder)


def select(documents: list[Document], kind: str) -> Document:
    [found] = [one for one in documents if one["kind"] == kind]
    return found


def test_the_chart_passes_helms_own_check(helm: Helm) -> None:
    assert "0 chart(s) failed" in helm.run("lint", "--strict", str(CHART))


@pytest.mark.parametrize("values", [{}, OTHER], ids=["defaults", "others"])
def test_rendered_documents_are_what_their_kinds_may_be(helm: Helm, values: dict[str, str]) -> None:
    documents = helm.render("allhands", CHART, values)
    kinds = sorted(one["kind"] for one in documents)
    wanted = ["NetworkPolicy", "NetworkPolicy", "Service", "StatefulSet"]
    assert kinds == (sorted([*wanted, "ServiceMonitor"]) if values else wanted)
    for one in documents:
        if one["kind"] != "ServiceMonitor":
            kubernetes_validate.validate(one, VERSION, strict=True)


def test_with_the_defaults_jobs_fit_as_to_the_plain_documents(helm: Helm) -> None:
    jobs = [one for one in PLAIN if one["kind"] in ("Job", "JobSet")]
    rendered = helm.render("allhands", CHART, {})
    assert list_disagreements([*rendered, *jobs], ["allhands-daemon", "allhands-worker"]) == []
    ours, plain = (select(every, "StatefulSet") for every in (rendered, PLAIN))
    [pod], [other] = list_pods(ours), list_pods(plain)
    assert set(other.command) <= set(pod.command)
    assert {**pod.container, "args": [], "image": ""} == {
        **other.container,
        "args": [],
        "image": "",
    }


def test_other_names_and_ports_go_to_all_documents(helm: Helm) -> None:
    rendered = helm.render("other", CHART, {**OTHER, "credentials.secret": "mine"})
    assert list_disagreements(rendered, ["mine"]) == []
    monitor = select(rendered, "ServiceMonitor")
    service = select(rendered, "Service")
    [endpoint] = monitor["spec"]["endpoints"]
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert endpoint["port"] in {one["name"] for one in service["spec"]["ports"]}
    assert endpoint["tlsConfig"]["serverName"] == service["metadata"]["name"] == "other"


def test_without_policies_and_monitor_two_documents_are_left(helm: Helm) -> None:
    rendered = helm.render("allhands", CHART, {"networkPolicy.enabled": "false"})
    assert sorted(one["kind"] for one in rendered) == ["Service", "StatefulSet"]


def test_the_rendered_coordinator_runs_with_every_value_set(helm: Helm, tmp_path: Path) -> None:
    rendered = helm.render("other", CHART, OTHER)
    [pod] = list_pods(select(rendered, "StatefulSet"))
    credentials = make_credentials(tmp_path / "credentials", "other")
    paths = {"/credentials": str(credentials / "daemon"), "/data": str(tmp_path / "data")}
    [endpoint] = select(rendered, "ServiceMonitor")["spec"]["endpoints"]
    tls = open_context(credentials / "worker" / "ca.crt")
    tls.load_cert_chain(credentials / "worker" / "tls.crt", credentials / "worker" / "tls.key")
    token = (credentials / "worker" / "token").read_text().strip()
    with open_stage(tmp_path, "other", (8070, 8071, 8072)) as stage:
        stage.start_daemon(pod.command, pod.environment, paths)
        url = f"https://127.0.0.1:{stage.get_port(8072)}"
        assert fetch(url, "/readyz", tls=tls).status == 200
        assert endpoint["scheme"] == "https"
        page = fetch(url, endpoint["path"], token, tls=tls)
        assert page.status == 200, page
        families = {one.name: one for one in text_string_to_metric_families(page.text)}
        [limit] = families["allhands_memory_limit_bytes"].samples
        assert limit.value == 512 * 2**20
