"""The command `allhands`: which commands there are, and how failures are told to people.

Only the module of the command that is asked for is imported: help answers at once. Exit status:
0 success, 1 failure, 2 wrong usage.
"""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import field
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, TypeAlias

from allhands.errors import AllhandsError
from allhands.escapes import escape_lines
from allhands.runtime.loading import load_command
from allhands.runtime.module_teardown import KeptModules
from allhands_proto.quick_dataclass import dataclass

with load_command():
    import typer

if TYPE_CHECKING:
    from typer.core import TyperCommand, TyperGroup


@dataclass(frozen=True, slots=True)
class _Command:
    help: str
    module: str
    attribute: str
    """A function, or a typer.Typer with commands of its own."""
    settings: dict[str, object] = field(default_factory=dict)
    is_hidden: bool = False


COMMANDS = {
    "serve": _Command("Run a coordinator.", "serve", "serve_command"),
    "run": _Command(
        "Launch the ranks of a job on this host, or on several over ssh.",
        "run",
        "run_command",
        # What follows the script belongs to the script, also what looks like our options.
        {"allow_interspersed_args": False, "ignore_unknown_options": False},
    ),
    "status": _Command(
        "Show jobs: members, their heartbeats, and the operation each is in.",
        "status",
        "status_command",
    ),
    "top": _Command(
        "Watch jobs, groups and ranks on a full screen: rates, late ranks, stalls, stacks.",
        "top",
        "top_command",
    ),
    "abort": _Command("Release all ranks of a job.", "abort", "abort_command"),
    "delete": _Command(
        "Forget jobs: their keys, and what is known of them.", "delete", "delete_command"
    ),
    "group": _Command("Show the members of a group with their progress.", "group", "group_command"),
    "events": _Command(
        "Show what has happened to a job: who came, left or was lost, aborts, refusals.",
        "events",
        "events_command",
    ),
    "doctor": _Command(
        "Examine this host and the way to the coordinator: what is wrong, and the fix.",
        "doctor",
        "doctor_command",
    ),
    "diagnose": _Command(
        "Ask every rank of a job where it is: who waits for whom, who is behind, who is late.",
        "diagnose",
        "diagnose_command",
    ),
    "page": _Command("Print a link that opens the coordinator's page.", "page", "page_command"),
    "trace": _Command(
        "Write what all ranks recorded as one trace, for Perfetto.", "trace", "trace_command"
    ),
    "report": _Command(
        "Write one HTML file on a job: skew, stragglers, slow calls, events, verdicts.",
        "report",
        "report_command",
    ),
    "bench": _Command("Time operations, beside Gloo and MPI.", "bench", "bench_command"),
    "context": _Command(
        "Name coordinators with their credentials, and choose one.", "context", "context_app"
    ),
    "token": _Command("Make certificates and tokens, and revoke tokens.", "token", "token_app"),
    "snapshot": _Command(
        "Save, restore and inspect the coordinator's durable state.", "snapshot", "snapshot_app"
    ),
    "kv": _Command("Get, put, delete and list the keys of a job.", "kv", "kv_app"),
    "lease": _Command(
        "Grant, keep alive and revoke leases, with the end of which keys go.", "lease", "lease_app"
    ),
    "lock": _Command(
        "Hold a lock of a job, for a command or until interrupted.", "lock", "lock_command"
    ),
    "barrier": _Command(
        "List the barriers at which somebody waits, and cancel one.", "barrier", "barrier_app"
    ),
    "elect": _Command("Lead an election of a job, or show who leads.", "elect", "elect_command"),
    # As it was called before `kv watch`.
    "watch": _Command(
        "Show changes of a job's keys, as they come.", "watch", "watch_command", is_hidden=True
    ),
}


_COMPLETION_VARIABLE = "_ALLHANDS_COMPLETE"
"""Set by the scripts of --show-completion when a shell asks."""


def main() -> None:
    """Run the command of the process's arguments, and exit with its status."""
    _open_standard_streams()
    kept = KeptModules()
    # Else gRPC writes a line for each handshake that fails: for commands one that says less than
    # theirs, for a daemon as many as strangers like.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        with load_command():
            app = make_app(sys.argv[1:])
        app(prog_name="allhands")
    except (AllhandsError, OSError) as error:
        sys.stderr.write(f"allhands: {escape_lines(str(error))}\n")
        sys.exit(1)
    finally:
        kept.keep_loaded()


def _open_standard_streams() -> None:
    """Open those standard streams that are closed on nothing: else a socket gets their number."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def make_app(arguments: Sequence[str]) -> typer.Typer:
    """Make the command line application for these arguments."""
    built = typer.Typer(
        callback=_run_root,
        no_args_is_help=True,
        add_completion=_wants_completion(arguments),
        rich_markup_mode=None,
    )
    words = _read_completed_words(os.environ) or arguments
    wanted = next((one for one in words if not one.startswith("-")), None)
    # Where a command comes first, nothing is said of the others: they need not be defined.
    is_alone = wanted in COMMANDS and wanted in arguments[:1]
    for name, command in COMMANDS.items():
        if is_alone and name != wanted:
            continue
        target: object = _raise_not_loaded
        if name == wanted:
            target = getattr(import_module(f"allhands.cli.{command.module}"), command.attribute)
        if isinstance(target, typer.Typer):
            built.add_typer(target, name=name, help=command.help)
        else:
            assert callable(target)
            built.command(
                name,
                help=command.help,
                context_settings={**command.settings},
                hidden=command.is_hidden,
            )(target)
    return built


def _wants_completion(arguments: Sequence[str]) -> bool:
    """Return whether the options of completion are needed: for help, for them, and for a shell.

    No command pays for importing what completes it.
    """
    is_asked = not arguments or arguments[0].startswith("-")
    return is_asked or _COMPLETION_VARIABLE in os.environ


def _read_completed_words(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the words behind `allhands` that a shell wants completed; empty: it does not ask."""
    if _COMPLETION_VARIABLE not in environ:
        return ()
    words = environ.get("COMP_WORDS") or environ.get("_TYPER_COMPLETE_ARGS", "")
    return words.split()[1:]


def load_commands() -> dict[str, "TyperCommand | TyperGroup"]:
    """Return every command by its name, with the modules of all of them imported."""
    from typer.main import get_command

    loaded: dict[str, TyperCommand | TyperGroup] = {}
    for name in COMMANDS:
        command = get_command(make_app([name])).commands[name]  # type: ignore[attr-defined]
        loaded[name] = command
    return loaded


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata  # with email and zipfile, which no command needs

        typer.echo(f"allhands {metadata.version('allhands')}")
        raise typer.Exit


_Version: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--version", callback=_show_version, is_eager=True, help="Show the version, and exit."
    ),
]


def _run_root(version: _Version = False) -> None:
    """All ranks, together: collective communication among Python processes."""


def _raise_not_loaded() -> None:
    """Stand in for the commands that these arguments do not select."""
    raise AssertionError("only the command that is asked for is ever called")


if __name__ == "__main__":
    main()
