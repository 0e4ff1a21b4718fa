"""Page of the commands: their arguments and options, from the parser that reads them."""

from collections.abc import Iterator
from typing import Any

from allhands.cli.main import load_commands


def describe_commands() -> str:
    """Return the commands of `allhands` as Markdown, a heading for each."""
    return "\n".join(
        line for name, command in load_commands().items() for line in _describe(name, command)
    )


def list_options(command: Any) -> list[str]:
    """Return the names of a command's options, `--name` and `-n`, and those of its commands."""
    own = [
        name
        for parameter in command.params
        if parameter.param_type_name == "option"
        for name in (*parameter.opts, *parameter.secondary_opts)
    ]
    return own + [
        name for inner in getattr(command, "commands", {}).values() for name in list_options(inner)
    ]


def _describe(name: str, command: Any, level: int = 2) -> Iterator[str]:
    yield f"{'#' * level} `allhands {name}`"
    yield ""
    yield _escape(command.help or command.short_help or "")
    yield ""
    inner = getattr(command, "commands", None)
    if inner is not None:
        for sub, one in inner.items():
            yield from _describe(f"{name} {sub}", one, level + 1)
        return
    arguments = " ".join(
        one.make_metavar(command.make_context(name, [], resilient_parsing=True))
        for one in command.params
        if one.param_type_name == "argument"
    )
    yield from ("```text", f"allhands {name} [OPTIONS] {arguments}".rstrip(), "```", "")
    options = [one for one in command.params if one.param_type_name == "option"]
    if options:
        yield from ("| option | meaning |", "|---|---|")
        yield from (_describe_option(one) for one in options)
        yield ""


def _describe_option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    value = "" if option.is_flag else f" {_escape(_name_value(option))}"
    text = _escape(option.help or "")
    if option.envvar:
        text += f" Also the variable `{option.envvar}`."
    if not option.is_flag and option.default not in (None, "", (), []):
        default = getattr(option.default, "value", option.default)  # of an enumeration
        shown = ", ".join(default) if isinstance(default, list | tuple) else default
        text += f" Default: `{shown}`."
    return f"| {names}{value} | {text.strip()} |"


def _name_value(option: Any) -> str:
    choices = getattr(option.type, "choices", None)
    if option.metavar is None and choices is not None:
        return "|".join(str(getattr(one, "value", one)) for one in choices)
    return str(option.metavar or option.type.name.split()[0].upper())


def _escape(text: str) -> str:
    """Keep text from being taken for Markdown, but for code between backticks."""
    for mark in "\\|<>[]*_":
        text = text.replace(mark, f"\\{mark}")
    return " ".join(text.split())
