"""Options mean the same in all commands."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import pytest
import typer
import typer.main

from allhands.cli.choice import CoordinatorChoice
from allhands.cli.main import COMMANDS, make_app

CLIENT_OPTIONS = {f"--{one.name.replace('_', '-')}" for one in fields(CoordinatorChoice)}
ASK_NO_COORDINATOR = {"bench", "context", "serve"}
"""`context set` names a coordinator, without asking it."""


def list_parameters(name: str) -> Iterator[tuple[str, list[Any]]]:
    """Yield the commands of a name, each with its options."""
    command = typer.main.get_command(make_app([name]))
    context = typer.Context(command)
    found = command.get_command(context, name)  # type: ignore[attr-defined]
    for path, one in getattr(found, "commands", {"": found}).items():
        options = [option for option in one.params if option.param_type_name == "option"]
        yield f"{name} {path}".strip(), options


def list_options(name: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the commands of a name, each with its options and the text for their values."""
    for command, options in list_parameters(name):
        yield (
            command,
            {text: option.metavar or "" for option in options for text in option.opts},
        )


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - ASK_NO_COORDINATOR))
def test_who_asks_a_coordinator_has_all_options_for_that(name: str) -> None:
    for command, options in list_options(name):
        if "--coordinator" in options:
            lacking = CLIENT_OPTIONS - options.keys()
            assert not lacking, f"`allhands {command}` lacks {lacking}: decorate it, @takes_client"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_values_of_options_have_a_name_or_are_choices(name: str) -> None:
    context = typer.Context(typer.main.get_command(make_app([name])))
    for command, options in list_parameters(name):
        for option in options:
            if not (option.is_flag or option.hidden):
                shown = option.make_metavar(context)
                is_named = not shown.startswith("<") or "|" in shown
                assert is_named, f"allhands {command} {option.opts[0]} {shown}"


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_view_that_is_shown_again_has_documents_too(name: str) -> None:
    for command, options in list_options(name):
        if "--watch" in options:
            assert "json" in options["-o"].split("|"), command
