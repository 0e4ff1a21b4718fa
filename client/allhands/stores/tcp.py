"""A store at a coordinator hosted by a process of the job: c10d's TCPStore."""

import os
import threading
import time
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING

from allhands.coordinator.attempts import ConnectAttempts
from allhands.coordinator.client import Control
from allhands.coordinator.embed import start_coordinator
from allhands.coordinator.endpoint import Address, Endpoint, apply_notice, is_insecure
from allhands.coordinator.host_address import resolve_host_blocking
from allhands.deadlines import Timeout, to_seconds
from allhands.errors import CoordinatorUnavailable, StoreTimeout, Unauthenticated
from allhands.runtime.loop_thread import LoopThread
from allhands.stores.coordinator import CoordinatorStore
from allhands_proto import forks
from allhands_proto.tls_files import apply_tls_directory

if TYPE_CHECKING:
    from allhands.coordinator.embed import RunningCoordinator

JOB = "store"
_POLL_SECONDS = 0.02


class TCPStore(CoordinatorStore):
    """A `Store` of all processes that name the same host and port; the master hosts it.

    On loopback the other processes find the master's token in the notice that the master leaves for
    its user. Beyond loopback, in a private network, all processes need ALLHANDS_INSECURE=1 (or
    `insecure`) and the same ALLHANDS_TOKEN (or `token`); in any other network run `allhands serve`
    with TLS and use `ah.store()`.

    Closed by `close`, at the end of a `with` block, or with the last reference to the store or a
    clone. Closing the master's deletes the keys; calls of the other stores raise
    CoordinatorUnavailable.
    """

    def __init__(
        self,
        host_name: str,
        port: int,
        world_size: int | None = None,
        is_master: bool = False,
        timeout: Timeout = 30.0,
        wait_for_workers: bool = True,
        *,
        token: str | None = None,
        insecure: bool = False,
    ) -> None:
        """Host the store as master, or connect to the master.

        Args:
            port: the master's port; 0 on the master: any free port, then found in its `port`.
            world_size: number of stores, the master's included; None: any number.
            timeout: seconds to connect, and for every wait.
            wait_for_workers: whether the master waits until all `world_size` stores are connected.

        Raises:
            ValueError: an argument is invalid, or strangers could connect to the master or read
                along.
            OSError: the master cannot listen on the port.
            CoordinatorUnavailable: no master answered in time.
            StoreTimeout: not all stores connected in time.
        """
        limit = to_seconds(timeout)
        if not 0 <= port < 1 << 16 or (port == 0 and not is_master):
            raise ValueError(f"port must be from 1 to 65535, or 0 for the master, not {port}")
        if world_size is not None and world_size < 1:
            raise ValueError(f"world_size must be positive, or None for any, not {world_size}")
        until = time.monotonic() + limit
        environ = apply_tls_directory(os.environ)
        token = token or environ.get("ALLHANDS_TOKEN") or None
        insecure = insecure or is_insecure(environ)
        self._embedded = (
            _EmbeddedCoordinator(host_name, port, token, insecure, environ) if is_master else None
        )
        try:
            if self._embedded is None:
                control = _connect(host_name, port, token, insecure, until, environ)
            else:
                control = Control(self._embedded.endpoint, job=JOB)
            super().__init__(control, limit)
            self._shared = _SharedConnection(control, self._embedded)
        except BaseException:
            if self._embedded is not None:
                self._embedded.stop()
            raise
        self.host = host_name
        self.port = port if self._embedded is None else self._embedded.port
        self.world_size = world_size
        self.is_master = is_master
        try:
            if world_size is not None:
                self._wait_workers(world_size, is_master and wait_for_workers, until)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "TCPStore":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Disconnect this store and its clones; the master's closes the store for all.

        In a forked child the master's coordinator lives on in the parent. Idempotent.
        """
        self._shared.close()

    def clone(self) -> CoordinatorStore:
        """Return a store over the same connection, which then stays open for the clone."""
        return _Clone(self._control, self._timeout, self._shared)

    def _wait_workers(self, world_size: int, waits: bool, deadline: float) -> None:
        """Register this store; on request wait for the rest of the world."""
        # Beside the program's keys, which it may count.
        with Control(self.endpoint, job=f"{JOB}.workers") as control:
            joined = control.add("joined", 1)
            turn = (joined - 1) // world_size
            if joined % world_size == 0:
                control.put(f"complete {turn}", b"")
            if not waits:
                return
            try:
                control.wait([f"complete {turn}"], timeout=max(deadline - time.monotonic(), 0))
            except StoreTimeout as error:
                there = int(control.get("joined")) - turn * world_size
                raise StoreTimeout(
                    f"timeout: {there} of {world_size} stores have come to port {self.port} of "
                    f"{self.host} in {self._timeout:g} s"
                ) from error


class _SharedConnection:
    """Connection of a store and its clones, and the master's coordinator; closed with the last."""

    def __init__(self, control: Control, embedded: "_EmbeddedCoordinator | None") -> None:
        self.close = weakref.finalize(self, _close, control, embedded)


class _Clone(CoordinatorStore):
    """A clone of a TCPStore."""

    def __init__(self, control: Control, timeout: float, shared: _SharedConnection) -> None:
        super().__init__(control, timeout)
        self._shared = shared

    def clone(self) -> CoordinatorStore:
        return _Clone(self._control, self._timeout, self._shared)


class _EmbeddedCoordinator:
    """A coordinator in this process, on a dedicated thread."""

    def __init__(
        self, host: str, port: int, token: str | None, insecure: bool, environ: Mapping[str, str]
    ) -> None:
        cert, key = (environ.get(f"ALLHANDS_TLS_{one}") or None for one in ("CERT", "KEY"))
        self._thread = LoopThread(f"store at port {port}")
        try:
            self._running: RunningCoordinator = self._thread.run(
                start_coordinator(
                    resolve_host_blocking(host),
                    port,
                    token,
                    tls_cert=cert,
                    tls_key=key,
                    tls_client_ca=environ.get("ALLHANDS_TLS_CLIENT_CA") or None,
                    insecure=insecure,
                )
            )
        except BaseException:
            self._thread.stop()
            raise
        self.port = self._running.port
        self.endpoint = Endpoint(
            Address(host if cert else self._running.host, self.port),
            self._running.token,
            (environ.get("ALLHANDS_TLS_CA") or cert) if cert else None,
            insecure,
            tls_cert=cert,
            tls_key=key,
        )
        forks.hold(self)

    @property
    def is_own_thread(self) -> bool:
        """Whether the caller runs on the coordinator's thread."""
        return self._thread.is_current

    def stop(self) -> None:
        """Stop the coordinator; in a forked child, leave the parent's running."""
        if self._thread.is_inherited:
            return
        self._thread.run(self._running.stop())
        self._thread.stop()


def _connect(
    host: str,
    port: int,
    token: str | None,
    insecure: bool,
    deadline: float,
    environ: Mapping[str, str],
) -> Control:
    """Connect as soon as the master answers, by repeated attempts."""
    tls_ca, tls_name, tls_cert, tls_key = (
        environ.get(f"ALLHANDS_TLS_{one}") or None for one in ("CA", "NAME", "CERT", "KEY")
    )
    attempts = ConnectAttempts(deadline)
    while True:
        endpoint = None
        try:
            address = Address(host if tls_ca else resolve_host_blocking(host), port)
            # Without a token of ours it is the one in the notice, perhaps of an earlier master.
            endpoint = apply_notice(
                Endpoint(address, token, tls_ca, insecure, tls_name, tls_cert, tls_key)
            )
            return _open_client(endpoint, max(deadline - time.monotonic(), _POLL_SECONDS))
        except (CoordinatorUnavailable, StoreTimeout, Unauthenticated) as error:
            attempts.record_failure(error, endpoint, is_guess=token is None)
        time.sleep(_POLL_SECONDS)


def _open_client(endpoint: Endpoint, timeout: float) -> Control:
    """Return a client after the coordinator's first answer."""
    control = Control(endpoint, job=JOB)
    try:
        control.count(timeout=timeout)
    except BaseException:
        control.close()
        raise
    return control


def _close(control: Control, embedded: _EmbeddedCoordinator | None) -> None:
    control.close()
    if embedded is None:
        return
    if embedded.is_own_thread:  # called by the collector, which may run anywhere
        threading.Thread(target=embedded.stop, name="end of a store", daemon=True).start()
    else:
        embedded.stop()
