"""Coordinator of a launch: a running one, or one embedded in the launcher."""

import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace

from allhands.coordinator.embed import load_server, start_coordinator
from allhands.coordinator.endpoint import Endpoint, apply_notice, parse_url
from allhands.errors import CoordinatorUnavailable, StoreTimeout, Unauthenticated
from allhands.launcher.environment import JobEndpoint, Rendezvous
from allhands.launcher.throwaway_tls import NAME, open_throwaway_tls
from allhands.runtime.loading import load_command

_PROBE_SECONDS = 5.0
_MAX_WAIT = 30.0
_DRAIN_SECONDS = 0.5


def probe(endpoint: Endpoint, max_wait: float = _MAX_WAIT) -> Endpoint:
    """Check before any rank starts that the coordinator answers and accepts the token.

    One that does not listen yet, or whose name is not known yet, is waited for.

    Returns:
        The endpoint, with what the notice says that the coordinator has left since it was made.

    Raises:
        CoordinatorUnavailable, Unauthenticated: it does not.
    """
    from allhands.coordinator.attempts import RETRY_SECONDS, ConnectAttempts

    attempts = ConnectAttempts(time.monotonic() + max_wait, quiet=0)
    while True:
        try:
            _ask(endpoint)
            return endpoint
        except (CoordinatorUnavailable, Unauthenticated) as error:
            attempts.record_failure(error, endpoint, is_guess=False)
        time.sleep(RETRY_SECONDS)  # there is no event for "somebody listens"
        endpoint = apply_notice(endpoint)


def _ask(endpoint: Endpoint) -> None:
    from allhands.coordinator.client import Control

    with Control(endpoint, job=None, timeout=_PROBE_SECONDS) as control:
        try:
            control.jobs()
        except StoreTimeout as error:
            raise CoordinatorUnavailable(
                f"the coordinator at {endpoint.address.target} did not answer "
                f"within {_PROBE_SECONDS:g} s"
            ) from error


def make_job_endpoint(endpoint: Endpoint, job: str) -> JobEndpoint:
    """Return the endpoint of `job` at a running coordinator."""
    address = endpoint.address
    return JobEndpoint(
        address.host,
        address.port,
        job,
        endpoint.token,
        endpoint.tls_ca,
        endpoint.insecure,
        endpoint.tls_name,
        endpoint.tls_cert,
        endpoint.tls_key,
        tuple(one.target for one in address.others),
    )


def make_client_endpoint(endpoint: JobEndpoint) -> Endpoint:
    """Return the endpoint of clients of a job's coordinator."""
    return Endpoint(
        parse_url(endpoint.url),
        endpoint.token,
        endpoint.tls_ca,
        endpoint.insecure,
        endpoint.tls_name,
        endpoint.tls_cert,
        endpoint.tls_key,
    )


@asynccontextmanager
async def run_embedded(
    job: str,
    data_dir: str | None = None,
    http: tuple[str, int] | None = None,
    on_page: Callable[[str, str, float], None] = lambda url, link, seconds: None,
) -> AsyncIterator[Rendezvous]:
    """Run a coordinator on this loop, on loopback, with a notice for the user's commands.

    With `http` it has a page: `on_page` gets the URL, a secret link that opens the page once, and
    the seconds for which it does.

    Raises:
        OSError: it cannot listen.
        CoordinatorUnavailable: the log in `data_dir` cannot be opened, or is damaged.
    """
    token = secrets.token_urlsafe(32)  # the ranks find it in their environment
    with load_command():
        load_server()
    running = await start_coordinator(token=token, data_dir=data_dir, http=http)
    try:
        if running.http_url:
            on_page(running.http_url, *running.make_page_link(job))
        endpoint = JobEndpoint("127.0.0.1", running.port, job, running.token)
        yield Rendezvous(endpoint, running.report_exit)
    finally:
        await running.stop(_DRAIN_SECONDS)


@asynccontextmanager
async def run_embedded_for_hosts(
    job: str,
    address: str,
    data_dir: str | None = None,
    http: tuple[str, int] | None = None,
    on_page: Callable[[str, str, float], None] = lambda url, link, seconds: None,
    *,
    insecure: bool = False,
) -> AsyncIterator[Rendezvous]:
    """Run a coordinator as `run_embedded` does, where ranks on other hosts reach it.

    It speaks TLS, with an authority made for this launch, unless `insecure`. `address` is that of
    this host for the others; it listens on all.

    Raises:
        OSError: it cannot listen.
        CoordinatorUnavailable: the log in `data_dir` cannot be opened, or is damaged.
    """
    token = secrets.token_urlsafe(32)
    listen = "::" if ":" in address else "0.0.0.0"
    with ExitStack() as stack:
        tls = None if insecure else stack.enter_context(open_throwaway_tls())
        running = await start_coordinator(
            listen,
            token=token,
            data_dir=data_dir,
            tls_cert=None if tls is None else tls.certificate,
            tls_key=None if tls is None else tls.key,
            insecure=insecure,
            http=http,
        )
        endpoint = JobEndpoint(address, running.port, job, running.token, insecure=insecure)
        if tls is not None:
            endpoint = replace(endpoint, tls_ca=tls.authority, tls_name=NAME)
        try:
            if running.http_url:
                on_page(running.http_url, *running.make_page_link(job))
            yield Rendezvous(endpoint, running.report_exit)
        finally:
            await running.stop(_DRAIN_SECONDS)


def make_job_name(stem: str) -> str:
    """Make a job's name from a script's, distinct for every launch."""
    return f"{re.sub(r'[^A-Za-z0-9_.-]', '-', stem)}-{secrets.token_hex(2)}"
