"""Sinks for events of a job: a command of the user's, and a web address."""

import contextlib
import http.client
import os
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import IO, Protocol
from urllib.parse import urlsplit

from allhands.coordinator.event_calls import JobEvent
from allhands_proto.quick_dataclass import dataclass

_STDERR = 2


class DeliveryFailed(Exception):
    """An event did not reach its sink; the text says why, and holds no secret."""


class EventSink(Protocol):
    """A receiver of events, one at a time, on a thread that may wait."""

    @property
    def name(self) -> str:
        """Name of the sink in messages, without secrets."""

    def deliver(self, document: bytes, seconds: float) -> None:
        """Deliver an event as JSON, within so many seconds.

        Raises:
            DeliveryFailed: it did not arrive, or was refused.
        """

    def close(self) -> None:
        """End a delivery that is under way, and make no other; from any thread. Idempotent."""


@dataclass(frozen=True, slots=True)
class EventOutlets:
    """The receivers of a job's events, and the form in which they get them."""

    sinks: tuple[EventSink, ...]
    format_event: Callable[[str, JobEvent], bytes]
    """Makes the document of an event of the named job."""


class CommandSink:
    """Runs a shell command for each event, which has the event on its standard input.

    What the command prints goes to the standard error of this process.
    """

    name = "--on-event"

    def __init__(self, command: str) -> None:
        self._command = command
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def deliver(self, document: bytes, seconds: float) -> None:
        """Run the command to its end; kill it with its children when the time is over."""
        try:
            process = subprocess.Popen(
                ["/bin/sh", "-c", self._command],
                stdin=subprocess.PIPE,
                stdout=_STDERR,
                start_new_session=True,
            )
        except OSError as error:
            raise DeliveryFailed(f"the command cannot be run: {error}") from error
        with self._lock:
            self._process = process
            if self._is_closed:  # while it was being started
                self._kill()
        try:
            process.communicate(document, seconds)
        except subprocess.TimeoutExpired as error:
            raise DeliveryFailed(f"the command did not end within {seconds:.3g} s") from error
        finally:
            with self._lock:
                self._kill()
            with contextlib.suppress(BrokenPipeError):  # it ended without reading
                process.communicate()
        if process.returncode:
            raise DeliveryFailed(f"the command ended with status {process.returncode}")

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            self._kill()

    def _kill(self) -> None:
        """Kill the command with its children, unless it has ended."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


class WebhookSink:
    """Posts each event to a web address; an answer that is not 2xx is a failure."""

    def __init__(self, url: str) -> None:
        """Take an address of http or https; its path may be a secret.

        Raises:
            ValueError: it is none.
        """
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
            raise ValueError("a webhook is an address as https://host/path, without a user")
        self._url = url
        port = f":{parts.port}" if parts.port else ""
        self._host = f"{parts.scheme}://{parts.hostname}{port}"
        self._opener = urllib.request.build_opener(_RefuseRedirects)

    @property
    def name(self) -> str:
        return f"--webhook {self._host}"

    def deliver(self, document: bytes, seconds: float) -> None:
        """Post the event; `seconds` are for each step of the connection."""
        headers = {"Content-Type": "application/json", "User-Agent": "allhands"}
        request = urllib.request.Request(self._url, document, headers, method="POST")
        try:
            with self._opener.open(request, timeout=seconds):
                pass
        except urllib.error.HTTPError as error:
            error.close()
            raise DeliveryFailed(f"it answered with status {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            raise DeliveryFailed(f"it cannot be reached: {reason}") from None

    def close(self) -> None:
        pass


class _RefuseRedirects(urllib.request.HTTPRedirectHandler):
    """Takes a redirect as an answer: followed, it would become a GET without the event."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> None:
        return None
