"""A receiver of webhooks on loopback."""

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Webhook:
    """What has been posted so far, and how it is answered."""

    url: str = ""
    status: int = 204
    location: str = ""
    """Where a redirect leads."""
    posted: list[dict[str, Any]] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    """Content types of the posts."""


@contextmanager
def run_webhook() -> Iterator[Webhook]:
    """Run a receiver within a block; its path holds a secret."""
    hook = Webhook()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            length = int(self.headers["Content-Length"])
            hook.posted.append(json.loads(self.rfile.read(length)))
            hook.types.append(self.headers["Content-Type"])
            self.send_response(hook.status)
            if hook.location:
                self.send_header("Location", hook.location)
            self.end_headers()

        def do_GET(self) -> None:
            raise AssertionError("a redirect was followed")

        def log_message(self, format: str, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    hook.url = f"http://127.0.0.1:{server.server_port}/hooks/sesame"
    try:
        yield hook
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
