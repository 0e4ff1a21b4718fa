"""Agreement of Kubernetes documents: names, ports, selectors and sizes that stand in several."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from support.deployments.pods import Document, Pod, get_option, list_pods

SERVED = {"grpc": "--listen", "kv": "--kv-port", "http": "--http"}
"""Ports of the coordinator, with the options that say where it listens."""


def list_disagreements(documents: Iterable[Document], secrets: Iterable[str]) -> list[str]:
    """Return what does not fit together, in words; `secrets` are those that are made by hand."""
    every = list(documents)
    return [
        *_check_coordinator(every),
        *_check_workers(every),
        *_check_volumes(every, set(secrets)),
    ]


def _check_coordinator(documents: list[Document]) -> Iterator[str]:
    [service] = _select(documents, "Service")
    [document] = [one for kind in ("StatefulSet", "Deployment") for one in _select(documents, kind)]
    [pod] = list_pods(document)
    spec = document["spec"]
    if spec.get("serviceName", service["metadata"]["name"]) != service["metadata"]["name"]:
        yield "the StatefulSet names another Service"
    if not _matches(spec["selector"]["matchLabels"], pod.labels):
        yield "the selector of the coordinator's controller is not of its pods"
    if not _matches(service["spec"]["selector"], pod.labels):
        yield "the Service does not select the coordinator"
    named = {one["name"]: one["containerPort"] for one in pod.container["ports"]}
    for name, option in SERVED.items():
        port = int(get_option(pod.command, option).rpartition(":")[2])
        if named.get(name) != port:
            yield f"{option} is not the container's port {name}"
    for one in service["spec"]["ports"]:
        if named.get(one["targetPort"]) != one["port"]:
            yield f"the Service's port {one['name']} is not the container's {one['targetPort']}"
    for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
        if pod.container[kind]["httpGet"]["port"] not in named:
            yield f"the {kind} asks at a port that the container does not have"
    if pod.spec["terminationGracePeriodSeconds"] <= int(get_option(pod.command, "--drain-timeout")):
        yield "the coordinator is killed before it has drained"
    yield from _check_policy(documents, pod, set(named))


def _check_policy(documents: list[Document], pod: Pod, ports: set[str]) -> Iterator[str]:
    policies = [
        one
        for one in _select(documents, "NetworkPolicy")
        if _matches(one["spec"]["podSelector"]["matchLabels"], pod.labels)
    ]
    open_ports = {
        port["port"]
        for one in policies
        for rule in one["spec"]["ingress"]
        for port in rule["ports"]
    }
    if policies and open_ports != ports:
        yield f"policies open {sorted(open_ports)} of the coordinator, which has {sorted(ports)}"


def _check_workers(documents: list[Document]) -> Iterator[str]:
    [service] = _select(documents, "Service")
    port = next(one["port"] for one in service["spec"]["ports"] if one["name"] == "grpc")
    for document in (*_select(documents, "Job"), *_select(documents, "JobSet")):
        name, pods = document["metadata"]["name"], list_pods(document)
        for pod in pods[:1]:
            if pod.environment["ALLHANDS_URL"] != f"ah://{service['metadata']['name']}:{port}":
                yield f"{name} does not dial the Service"
            if _get_launchers(pod) != len(pods):
                yield f"{name} has {len(pods)} pods and another size of its world"
            ports = _get_links(pod)
            if {one["containerPort"] for one in pod.container["ports"]} != set(ports):
                yield f"{name} listens for peers at other ports than those of its container"
            for caller in (pod, *_list_coordinators(documents)):
                reached = set() if caller is pod else {"grpc", "kv"}
                yield from _check_reach(documents, name, pod, caller, reached, ports)


def _check_reach(
    documents: list[Document], name: str, worker: Pod, to: Pod, named: set[str], ports: range
) -> Iterator[str]:
    """Check that policies let a worker to the ports of a pod: those named, else a range."""
    policies = [
        one["spec"]
        for one in _select(documents, "NetworkPolicy")
        if _matches(one["spec"]["podSelector"]["matchLabels"], to.labels)
    ]
    rules = [
        port
        for one in policies
        for rule in one["ingress"]
        for source in rule["from"]
        if _matches(source.get("podSelector", {}).get("matchLabels", {"": ""}), worker.labels)
        for port in rule["ports"]
    ]
    if named and policies and not named <= {one["port"] for one in rules}:
        yield f"no policy lets {name} to the coordinator"
    if not named and policies:
        spans = (range(one["port"], one.get("endPort", one["port"]) + 1) for one in rules)
        if not any(span.start <= ports.start and ports.stop <= span.stop for span in spans):
            yield f"no policy lets the workers of {name} to each other's ports"


def _check_volumes(documents: list[Document], secrets: set[str]) -> Iterator[str]:
    for document in documents:
        for pod in list_pods(document)[:1]:
            claims = document["spec"].get("volumeClaimTemplates", ())
            volumes = {one["name"] for one in pod.spec["volumes"]}
            volumes |= {one["metadata"]["name"] for one in claims}
            mounts = {one["name"]: one["mountPath"] for one in pod.container["volumeMounts"]}
            name = document["metadata"]["name"]
            if volumes != set(mounts):
                yield f"{name} mounts {sorted(mounts)}, and has {sorted(volumes)}"
            used = {one["secret"]["secretName"] for one in pod.spec["volumes"] if "secret" in one}
            if not used or not used <= secrets:
                yield f"{name} wants the secrets {sorted(used)}, and there are {sorted(secrets)}"
            if _get_credentials(pod) != mounts.get("credentials"):
                yield f"{name} reads its credentials from where they are not mounted"


def _get_credentials(pod: Pod) -> str:
    found: str | None = pod.environment.get("ALLHANDS_TLS_DIR")
    return found or get_option(pod.command, "--tls-dir")


def _get_launchers(pod: Pod) -> int:
    if "run" in pod.command:
        return int(get_option(pod.command, "--nnodes"))
    return int(pod.environment["WORLD_SIZE"])


def _get_links(pod: Pod) -> range:
    """Return the ports on which the ranks of a pod listen."""
    text = pod.environment.get("ALLHANDS_PORT_RANGE") or get_option(pod.command, "--port-range")
    low, _, high = text.partition("-")
    return range(int(low), int(high) + 1)


def _list_coordinators(documents: list[Document]) -> list[Pod]:
    return [pod for one in documents if one["kind"] == "StatefulSet" for pod in list_pods(one)]


def _select(documents: Iterable[Document], kind: str) -> list[Document]:
    return [one for one in documents if one["kind"] == kind]


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    return all(labels.get(name) == value for name, value in selector.items())
