"""Rendezvous of torchrun's agents and their workers at a coordinator.

Agents agree by PyTorch's own dynamic rendezvous, whose state is a key of the run's job; so restarts
and elastic sizes work. Workers find the coordinator in ALLHANDS_URL, and each of their worlds is a
separate job, `torchrun-ID-world-...`, which ends with its last rank.
"""

import logging
import os
import re
import time
from dataclasses import dataclass
from typing import Any

from torch.distributed.elastic.rendezvous import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
)
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
    RendezvousBackend,
    create_handler,
)
from torch.distributed.elastic.rendezvous.utils import (
    _matches_machine_hostname,
    parse_rendezvous_endpoint,
)

from allhands.coordinator.attempts import call_until_available
from allhands.coordinator.client import Control
from allhands.coordinator.endpoint import Endpoint, find_coordinator
from allhands.errors import AllhandsError, NotFound
from allhands.stores import CoordinatorStore, TCPStore
from allhands.torch.names import NAME
from allhands.torch.rendezvous.store import Store

logger = logging.getLogger(__name__)

DEFAULT_PORT = 7070
"""That of `allhands serve`."""
_CONNECT_SECONDS = 60
_CALL_SECONDS = 60.0
_KEY = "state"
_AGENTS = "agents"


class RendezvousState(RendezvousBackend):  # type: ignore[misc]
    """Shared state of torchrun's agents as a key; the token is the value."""

    def __init__(self, control: Control) -> None:
        self._control = control

    @property
    def name(self) -> str:
        return NAME

    def get_state(self) -> tuple[bytes, Any] | None:
        try:
            value = self._control.get(_KEY)
        except NotFound:
            return None
        except AllhandsError as error:
            raise _to_connection_error(error) from error
        return value, value

    def set_state(self, state: bytes, token: Any = None) -> tuple[bytes, Any, bool] | None:
        if token is not None and not isinstance(token, bytes):  # none of ours
            return None if (found := self.get_state()) is None else (*found, False)
        try:
            swap = self._control.cas(_KEY, token or b"", state)
        except AllhandsError as error:
            raise _to_connection_error(error) from error
        return None if swap.value is None else (swap.value, swap.value, swap.swapped)


class _FailureLogHandler(logging.Handler):
    """Logs failing ranks for torchrun's user in the coordinator's order."""

    _SOURCE = logging.getLogger("allhands_server.coordinator")

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self._level = self._SOURCE.level
        self._SOURCE.setLevel(logging.INFO)
        self._SOURCE.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if getattr(record, "of_failure", False):
            logger.warning("%s", record.getMessage())

    def close(self) -> None:
        self._SOURCE.removeHandler(self)
        self._SOURCE.setLevel(self._level)
        super().close()


class CoordinatorHost:
    """Coordinator hosted by this agent, on an own thread."""

    def __init__(self, host: str, port: int) -> None:
        self._store = TCPStore(host, port, is_master=True)
        self._failures = _FailureLogHandler()

    @property
    def endpoint(self) -> Endpoint:
        return self._store.endpoint

    def close(self) -> None:
        self._failures.close()
        self._store.close()


class ElasticRendezvousHandler(RendezvousHandler):  # type: ignore[misc]
    """PyTorch's dynamic rendezvous over a coordinator, hosted here if necessary."""

    def __init__(self, inner: Any, control: Control, host: CoordinatorHost | None) -> None:
        self._inner = inner
        self._control = control
        self._host = host
        self._control.add(_AGENTS, 1)

    def get_backend(self) -> str:
        return NAME

    @property
    def use_agent_store(self) -> bool:
        return bool(self._inner.use_agent_store)

    def next_rendezvous(self) -> RendezvousInfo:
        # PyTorch 2.13 tells the address of the workers' store in the first round only: a node that
        # comes later waits for it, or has another one than the rest. So each round has a new store,
        # in which there is nothing of the workers before.
        self._inner._bootstrap_store_info = None
        return self._inner.next_rendezvous()

    def is_closed(self) -> bool:
        return bool(self._inner.is_closed())

    def set_closed(self) -> None:
        self._inner.set_closed()

    def num_nodes_waiting(self) -> int:
        return int(self._inner.num_nodes_waiting())

    def get_run_id(self) -> str:
        return str(self._inner.get_run_id())

    def shutdown(self) -> bool:
        """Close the rendezvous; the last agent deletes the keys."""
        is_closed = bool(self._inner.shutdown())
        try:
            if self._control.add(_AGENTS, -1) <= 0:
                for key in self._control.list():
                    self._control.delete(key)
        except AllhandsError as error:
            logger.warning("the coordinator has gone before the rendezvous: %s", error)
            is_closed = False
        self._control.close()
        if self._host is not None:
            self._host.close()
        return is_closed


def make_handler(parameters: Any) -> ElasticRendezvousHandler:
    """Return the handler of an agent; `RendezvousParameters` say of which run, and where.

    Options of --rdzv-conf: `is_host` (whether this agent hosts the coordinator; without it the
    first one does that is at the endpoint's host, where none answers yet), `connect_timeout` in
    seconds, and those of PyTorch's "c10d" but for `store_type` and `read_timeout`.

    Raises:
        ValueError: the endpoint is missing or makes no sense, or is open to strangers.
        RendezvousConnectionError: there is no coordinator, or it does not let us in.
    """
    found = _find_or_host(parameters)
    limit = parameters.get_as_int("connect_timeout", _CONNECT_SECONDS)
    run = f"torchrun-{re.sub(r'[^A-Za-z0-9._:@+-]', '-', parameters.run_id)}"
    control = Control(found.endpoint, job=f"{run}.rendezvous", timeout=_CALL_SECONDS)
    store = Store(CoordinatorStore(control, _CALL_SECONDS))
    try:
        call_until_available(control.count, found.endpoint, time.monotonic() + limit)
        handler = ElasticRendezvousHandler(
            create_handler(store, RendezvousState(control), parameters), control, found.host
        )
    except AllhandsError as error:
        raise _to_connection_error(error) from error
    _set_worker_environment(found.endpoint, run)
    return handler


@dataclass(frozen=True, slots=True)
class _FoundCoordinator:
    endpoint: Endpoint
    host: CoordinatorHost | None = None
    """Whose end is that of the coordinator; None: it is another process's."""


def _find_or_host(parameters: Any) -> _FoundCoordinator:
    """Find the coordinator, or host a new one."""
    is_host = parameters.get_as_bool("is_host")
    if not parameters.endpoint.strip():
        if os.environ.get("ALLHANDS_URL"):
            return _FoundCoordinator(find_coordinator(None, os.environ))
        if parameters.max_nodes > 1:
            raise ValueError(
                "several nodes need --rdzv-endpoint=host:port, the same for all: an address of "
                "one of them, or where `allhands serve` runs (or ALLHANDS_URL)"
            )
        return _host("127.0.0.1", 0, parameters)
    host, port = parse_rendezvous_endpoint(parameters.endpoint, DEFAULT_PORT)
    if is_host or (is_host is None and _matches_machine_hostname(host)):
        try:
            return _host(host, port, parameters)
        except OSError as error:
            if is_host:
                raise RendezvousConnectionError(
                    f"this agent is to host the coordinator at {host}:{port}, and cannot: {error}"
                ) from error
            logger.info("%s:%d is taken (%s): a coordinator should be there", host, port, error)
    limit = parameters.get_as_int("connect_timeout", _CONNECT_SECONDS)
    try:
        with TCPStore(host, port, timeout=limit) as there:
            return _FoundCoordinator(there.endpoint)
    except AllhandsError as error:
        raise _to_connection_error(error) from error


def _host(address: str, port: int, parameters: Any) -> _FoundCoordinator:
    try:
        host = CoordinatorHost(address, port)
    except ValueError as error:
        raise ValueError(
            f"this agent would host the coordinator of run {parameters.run_id!r}: {error}; start "
            "one with `allhands serve` and name it with --rdzv-endpoint, or, if that network is "
            "yours alone, set ALLHANDS_INSECURE=1 and the same ALLHANDS_TOKEN for all agents"
        ) from error
    logger.info("run %s: this agent hosts the coordinator", parameters.run_id)
    return _FoundCoordinator(host.endpoint, host)


def _set_worker_environment(endpoint: Endpoint, run: str) -> None:
    """Set the coordinator's variables, which the workers inherit."""
    if os.environ.get("ALLHANDS_URL"):
        return  # the user knows a better one
    os.environ["ALLHANDS_URL"] = f"ah://{endpoint.address.target}/{run}"
    if endpoint.token and not endpoint.address.is_loopback:
        os.environ["ALLHANDS_TOKEN"] = endpoint.token


def _to_connection_error(error: AllhandsError) -> RendezvousConnectionError:
    return RendezvousConnectionError(f"the rendezvous at the coordinator has failed: {error}")
