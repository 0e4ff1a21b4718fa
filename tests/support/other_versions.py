"""`allhands serve` that speaks other versions of the protocol.

python -m support.other_versions OLDEST NEWEST checks|accepts OPTIONS...

One that accepts does not look at its callers' versions, as those of the time before versions.
"""

import sys

from allhands_proto import versions


def make_command(oldest: int, newest: int, *, checks: bool = True) -> tuple[str, ...]:
    """Return the command of such a daemon, without the options of `serve`."""
    kind = "checks" if checks else "accepts"
    return (sys.executable, "-m", __name__, str(oldest), str(newest), kind)


def _serve(oldest: int, newest: int, kind: str) -> None:
    versions.OWN = versions.Versions(oldest, newest)
    # Only now: these take the versions over as values.
    import typer

    from allhands.cli.serve import serve_command
    from allhands_proto import kv_handshake
    from allhands_server.rpc import service

    if kind == "accepts":
        for module in (service, kv_handshake):
            vars(module).update(explain_mismatch=lambda *_: "")
    typer.run(serve_command)


if __name__ == "__main__":
    _, first, last, what, *options = sys.argv
    sys.argv = [sys.argv[0], *options]
    _serve(int(first), int(last), what)
