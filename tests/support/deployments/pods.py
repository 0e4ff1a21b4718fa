"""Pods that Kubernetes would make of a document, with the environment of their containers."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

Document = Mapping[str, Any]

_LABEL = re.compile(r"metadata\.labels\['([^']+)'\]")
_REFERENCE = re.compile(r"\$\((\w+)\)")


@dataclass(frozen=True)
class Pod:
    """One pod, with the labels and variables that controllers add."""

    labels: Mapping[str, str]
    spec: Document
    added: Mapping[str, str]
    """Variables that its controller adds to each container."""

    @property
    def container(self) -> Document:
        """The only container."""
        [found] = self.spec["containers"]
        return dict(found)

    @property
    def environment(self) -> dict[str, str]:
        """Variables of the container, references resolved as the kubelet does."""
        found = dict(self.added)
        for one in self.container.get("env", ()):
            text = one.get("value", "") if "valueFrom" not in one else self._read(one["valueFrom"])
            found[one["name"]] = _expand(text, found)
        return found

    @property
    def command(self) -> list[str]:
        """The container's `command`, or the image's, and its `args`."""
        words = [*self.container.get("command", ["allhands"]), *self.container.get("args", ())]
        return [_expand(word, self.environment) for word in words]

    def _read(self, source: Document) -> str:
        [(kind, reference)] = source.items()
        assert kind == "fieldRef", f"{kind} is not resolved here"
        found = _LABEL.fullmatch(reference["fieldPath"])
        assert found, f"{reference} is not resolved here"
        return self.labels[found[1]]


def _expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)`; a name that is not known stays, as in Kubernetes."""
    return _REFERENCE.sub(lambda found: variables.get(found[1], found[0]), text)


def load_documents(*paths: Path) -> list[Document]:
    """Return the documents of YAML files, in order."""
    return [one for path in paths for one in yaml.safe_load_all(path.read_text()) if one]


def list_pods(document: Document, attempt: int = 0) -> list[Pod]:
    """Return the pods of a document, none if it makes none; `attempt` is that of a JobSet."""
    name = document["metadata"]["name"]
    match document["kind"]:
        case "StatefulSet" | "Deployment":
            template = document["spec"]["template"]
            count = document["spec"].get("replicas", 1)
            return [Pod(_get_labels(template), template["spec"], {})] * count
        case "Job":
            return list(_make_job_pods(name, document["spec"], {}))
        case "JobSet":
            added = {
                "jobset.sigs.k8s.io/jobset-name": name,
                "jobset.sigs.k8s.io/restart-attempt": str(attempt),
            }
            return [
                pod
                for one in document["spec"]["replicatedJobs"]
                for index in range(one.get("replicas", 1))
                for pod in _make_job_pods(
                    f"{name}-{one['name']}-{index}", one["template"]["spec"], added
                )
            ]
    return []


def _make_job_pods(name: str, job: Document, labels: Mapping[str, str]) -> Iterator[Pod]:
    assert job["completionMode"] == "Indexed"
    assert job["parallelism"] == job["completions"], "ranks wait for each other"
    for index in range(job["completions"]):
        added = {
            "batch.kubernetes.io/job-name": name,
            "batch.kubernetes.io/job-completion-index": str(index),
        }
        every = {**_get_labels(job["template"]), **labels, **added}
        yield Pod(every, job["template"]["spec"], {"JOB_COMPLETION_INDEX": str(index)})


def _get_labels(template: Document) -> dict[str, str]:
    return dict(template["metadata"]["labels"])


def get_option(words: Sequence[str], name: str) -> str:
    """Return the value of an option that is written `--name=value`.

    Raises:
        KeyError: it is not given.
    """
    for word in words:
        if word.startswith(f"{name}="):
            return word.partition("=")[2]
    raise KeyError(name)
