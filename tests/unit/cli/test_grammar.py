"""Options mean the same in all commands."""

from collections.abc import Iterator
from dataclasses import fields

import pytest
import typer
import typer.main

from allhands.cli.choice import CoordinatorChoice
from allhands.cli.main import COMMANDS, make_app

CLIENT_OPTIONS = {f"--{one.name.replace('_', '-')}" for one in fields(CoordinatorChoice)}
ASK_NO_COORDINATOR = {"bench", "context", "serve"}
"""`context set` names a coordinator, without asking it."""


def list_options(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the commands of a name, each with its options and the text for their values."""
    command = typer.main.get_command(make_app([name]))
    context = typer.Context(command)
    found = command.get_command(context, name)  # type: ignore[attr-defined]
    for path, one in getattr(found, "commands", {"": found}).items():
        options = {
            text: option.metavar or ""
            for option in one.params
            if option.param_type_name == "option"
            for text in option.opts
        }
        yield f"{name} {path}".strip(), options


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - ASK_NO_COORDINATOR))
def test_who_asks_a_coordinator_has_all_options_for_that(name: str) -> None:
    for command, options in list_options(name):
        if "--coordinator" in options:
            lacking = CLIENT_OPTIONS - options.keys()
            assert not lacking, f"`allhands {command}` lacks {lacking}: decorate it, @takes_client"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_view_that_is_shown_again_has_documents_too(name: str) -> None:
    for command, options in list_options(name):
        if "--watch" in options:
            assert "json" in options["-o"].split("|"), command
