"""deploy/kubernetes: documents that are valid, agree, and lead ranks to the right world."""

import copy
import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from support.deployments.agreement import list_disagreements
from support.deployments.pods import Document, list_pods, load_documents
from support.deployments.stage import ROOT, Stage, open_stage
from support.http_pages import fetch
from support.ranks.launchers import Launcher
from support.tls_contexts import open_context

FOLDER = ROOT / "deploy/kubernetes"
FILES = sorted(FOLDER.glob("*.yaml"))
DOCUMENTS = load_documents(*FILES)
SECRETS = ("allhands-daemon", "allhands-worker")
VERSION = "1.33"
PORTS = (7070, 7071, 7072)


def read_secret_commands() -> list[list[str]]:
    """Return the commands of docs/kubernetes.md that make credentials and secrets."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    lines = [line.removeprefix("    $ ") for line in page.splitlines() if line.startswith("    $ ")]
    wanted = ("allhands token init", "kubectl create secret")
    return [shlex.split(line) for line in lines if line.startswith(wanted)]


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the first command of docs/kubernetes.md; return the folder that it makes."""
    folder = tmp_path_factory.mktemp("credentials")
    [init] = [one for one in read_secret_commands() if one[0] == "allhands"]
    command = [sys.executable, "-m", "allhands.cli.main", *init[1:]]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return folder / init[3]


def name_document(document: Document) -> str:
    return f"{document['kind']}-{document['metadata']['name']}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_document)
def test_a_document_is_what_its_kind_may_be(document: Document) -> None:
    if document["kind"] != "JobSet":
        kubernetes_validate.validate(document, VERSION, strict=True)
        return
    assert set(document) == {"apiVersion", "kind", "metadata", "spec"}
    assert set(document["spec"]) == {"failurePolicy", "replicatedJobs"}
    for one in document["spec"]["replicatedJobs"]:
        assert set(one) == {"name", "replicas", "template"}
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": one["name"]}}
        kubernetes_validate.validate({**job, **one["template"]}, VERSION, strict=True)


def test_an_unknown_field_is_found() -> None:
    broken = copy.deepcopy(DOCUMENTS[0])
    broken["spec"]["selektor"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(broken, VERSION, strict=True)


def test_the_documents_agree() -> None:
    assert list_disagreements(DOCUMENTS, SECRETS) == []


def find(documents: list[Any], kind: str) -> Any:
    return next(one for one in documents if one["kind"] == kind)


def get_container(document: Any) -> Any:
    return document["spec"]["template"]["spec"]["containers"][0]


BROKEN: dict[str, Callable[[list[Any]], object]] = {
    "does not select": lambda every: find(every, "Service")["spec"]["selector"].update(x="y"),
    "port kv": lambda every: find(every, "Service")["spec"]["ports"][1].update(port=7000),
    "--http": lambda every: get_container(find(every, "StatefulSet"))["ports"][2].update(
        containerPort=9
    ),
    "livenessProbe": lambda every: get_container(find(every, "StatefulSet"))["livenessProbe"][
        "httpGet"
    ].update(port="metrics"),
    "before it has drained": lambda every: find(every, "StatefulSet")["spec"]["template"][
        "spec"
    ].update(terminationGracePeriodSeconds=30),
    "another size": lambda every: find(every, "Job")["spec"].update(completions=5, parallelism=5),
    "the secrets": lambda every: find(every, "Job")["spec"]["template"]["spec"]["volumes"][0][
        "secret"
    ].update(secretName="other"),
    "not mounted": lambda every: get_container(find(every, "Job"))["volumeMounts"][0].update(
        mountPath="/secrets"
    ),
    "does not dial": lambda every: get_container(find(every, "Job"))["env"][1].update(
        value="ah://allhands:7000"
    ),
    "each other's ports": lambda every: next(
        one for one in every if one["metadata"]["name"] == "allhands-workers"
    )["spec"]["ingress"][0]["ports"][0].update(endPort=30000),
    "to the coordinator": lambda every: next(
        one for one in every if one["metadata"]["name"] == "allhands-coordinator"
    )["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"].update(x="y"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_does_not_fit_together_is_found(what: str) -> None:
    documents = copy.deepcopy(DOCUMENTS)
    BROKEN[what](documents)
    assert any(what in one for one in list_disagreements(documents, SECRETS))


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_the_commands_of_the_page_make_the_secrets_that_are_mounted(credentials: Path) -> None:
    made = []
    for command in read_secret_commands():
        if command[0] == "kubectl":
            printing = [*command, "--dry-run=client", "--output=json"]
            done = subprocess.run(printing, cwd=credentials.parent, check=True, capture_output=True)
            made.append(json.loads(done.stdout))
    assert {one["metadata"]["name"] for one in made} == set(SECRETS)
    for one in made:
        assert set(one["data"]) == {"ca.crt", "tls.crt", "tls.key", "token"}


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, credentials: Path) -> Iterator[Stage]:
    """The coordinator of the StatefulSet, and room for pods beside it."""
    folder = tmp_path_factory.mktemp("stage")
    with open_stage(folder, "allhands", PORTS) as opened:
        [pod] = list_pods(find(DOCUMENTS, "StatefulSet"))
        paths = {"/credentials": str(credentials / "daemon"), "/data": str(folder / "data")}
        opened.start_daemon(pod.command, pod.environment, paths)
        yield opened


@pytest.fixture(scope="module")
def coordinator(stage: Stage) -> Launcher:
    return stage.started[0]


def test_the_probes_of_the_coordinator_answer(stage: Stage, credentials: Path) -> None:
    [pod] = list_pods(find(DOCUMENTS, "StatefulSet"))
    context = open_context(credentials / "daemon" / "ca.crt")
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        probe = pod.container[kind]["httpGet"]
        assert probe["scheme"] == "HTTPS"
        url = f"https://127.0.0.1:{stage.get_port(7072)}"
        assert fetch(url, probe["path"], tls=context).status == 200, kind


@pytest.mark.parametrize("kind", ["Job", "JobSet"])
def test_the_pods_of_a_job_are_the_ranks_of_one_world(
    stage: Stage, coordinator: Launcher, credentials: Path, kind: str
) -> None:
    document = find(DOCUMENTS, kind)
    paths = {"/credentials": str(credentials / "worker")}
    pods = [stage.start_pod(pod, paths) for pod in list_pods(document, attempt=1)]
    assert [one.status() for one in pods] == [0] * len(pods), [one.errors for one in pods]
    said = [line for one in pods for line in one.output()]
    for rank in range(4):
        greeting = f"hello from rank {rank} of 4: all ranks add up to 6"
        assert sum(greeting in line for line in said) == 1, said
    job = "hello" if kind == "Job" else "hello-set-1"
    assert any(f"job {job}: running" in line for line in said), said
    status = stage.run_beside(coordinator, "allhands", "status", job)
    assert f"job {job}: ended" in status.stdout, status
