"""Start of coordinators in this process: the client's only way into the server package."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from allhands.errors import CoordinatorUnavailable
from allhands.runtime.loading import pause_gc

if TYPE_CHECKING:
    from allhands_server.embedded import RunningCoordinator as RunningCoordinator
    from allhands_server.inproc import InprocCoordinator


def load_server() -> None:
    """Import the server, which else `start_coordinator` does."""
    from allhands_server import config, embedded  # noqa: F401


async def start_coordinator(
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    *,
    tls_cert: str | Path | None = None,
    tls_key: str | Path | None = None,
    tls_client_ca: str | Path | None = None,
    insecure: bool = False,
    post_notice: bool = True,
    data_dir: str | Path | None = None,
    http: tuple[str, int] | None = None,
) -> "RunningCoordinator":
    """Start a coordinator on the running loop; port 0: any free port.

    Args:
        token: secret of the callers; None: a new one, for readers of the notice.
        post_notice: whether commands of the same user find the coordinator.
        data_dir: folder of a log that keeps its state for the next one there; None: memory alone.
        http: host and port of a page of its jobs, with health and metrics; None: there is none.

    Raises:
        CoordinatorUnavailable: the log cannot be opened, or is damaged; the text says which.
        ValueError: other hosts could connect without a token and TLS, a file is missing.
        OSError: the port is taken, the host is not of this machine, a file cannot be read.
    """
    with pause_gc():
        from allhands_server import embedded
        from allhands_server.config import VARIABLES, ServerConfig

    config = ServerConfig(
        host=host,
        port=port,
        token=token,
        tls_cert=tls_cert,
        tls_key=tls_key,
        tls_client_ca=tls_client_ca,
        insecure=insecure,
        data_dir=data_dir,
        http=http,
        post_notice=post_notice,
        kind="embedded",
        setting_names=VARIABLES,
    )
    if data_dir is None:
        return await embedded.start(config)
    from allhands_server.log.errors import LogError  # which few coordinators need

    try:
        return await embedded.start(config)
    except LogError as error:
        raise CoordinatorUnavailable(f"no coordinator in {data_dir}: {error}") from error


def check_http_packages() -> None:
    """Check that the packages for an HTTP port are there.

    Raises:
        ValueError: some are missing; says which, and how to install them.
    """
    from allhands_server.http.extra import check_installed

    check_installed()


def make_inproc_coordinator(clock: Callable[[], float]) -> "InprocCoordinator":
    """Make a coordinator without a port, for ranks on the running loop."""
    from allhands_server.inproc import InprocCoordinator

    return InprocCoordinator(clock)
