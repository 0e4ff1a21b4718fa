"""Commands in the shell blocks of documents, checked against what they name.

    allhands    its commands, options, values and arguments, by the parser that reads them
    make        the targets of the Makefile
    pip         the extras of the package
    python -m   the module
    variables   those that begin with ALLHANDS_, by the page of settings
    files       those in folders of this project

Other programs are in `FOREIGN`; one that is not there is an error.
"""

import importlib.util
import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import typer

from allhands.cli.main import load_commands
from support.documents.pages import ROOT

FOREIGN = frozenset(
    {
        "cat",
        "cp",
        "curl",
        "docker",
        "export",
        "helm",
        "journalctl",
        "jq",
        "kill",
        "kubectl",
        "mpiexec",
        "mpirun",
        "openssl",
        "sbatch",
        "scp",
        "srun",
        "ssh",
        "systemctl",
        "torchrun",
    }
)
"""Programs that are others', whose arguments are not checked here."""

_PROMPT = re.compile(r"\w*\$ ")
_FOLDERS = frozenset(path.name for path in ROOT.iterdir() if path.is_dir())
_USAGE_ERROR: Any = typer.BadParameter.__base__
_LIKE_THE_LAST = "..."
"""At the end of a command: and the options of the one before."""


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command of a block."""

    text: str
    words: tuple[str, ...]
    variables: tuple[str, ...]
    """NAME=VALUE, before the program or after `export`."""
    stdin: str = ""
    """File that it reads."""


def read_session(text: str) -> list[tuple[str, str]]:
    """Return the command lines of a session, after their prompts, each with what it prints."""
    found: list[tuple[str, str]] = []
    is_open = False
    for line in text.splitlines(keepends=True):
        if prompt := _PROMPT.match(line):
            found.append((line[prompt.end() :], ""))
            is_open = line.rstrip().endswith("\\")
        elif not found:
            raise ValueError(f"a session begins with a prompt, not with {line!r}")
        elif is_open:
            found[-1] = (found[-1][0] + line, "")
            is_open = line.rstrip().endswith("\\")
        else:
            found[-1] = (found[-1][0], found[-1][1] + line)
    return found


def split_commands(text: str) -> Iterator[Command]:
    """Yield the simple commands of lines for a shell: no loops, no pipes, no substitutions."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&;|<>")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        words: list[str] = []
        for word in [*lexer, ";"]:
            if set(word) <= set("&;|"):
                if words:
                    yield _make_command(words, line)
                words = []
            else:
                words.append(word)


def _make_command(words: list[str], line: str) -> Command:
    stdin = ""
    if "<" in words:
        at = words.index("<")
        stdin = words[at + 1]
        words = words[:at] + words[at + 2 :]
    if ">" in words:
        words = words[: words.index(">")]
    variables = []
    if words[0] == "export":
        return Command(line.strip(), ("export",), tuple(words[1:]))
    while words and re.match(r"\w+=", words[0]):
        variables.append(words[0])
        words = words[1:]
    while words and words[0] in ("sudo", "exec"):
        words = words[1:]
    if words and words[0].startswith("/"):
        words[0] = words[0].rpartition("/")[2]  # as installed somewhere
    return Command(line.strip(), tuple(words), tuple(variables), stdin)


def find_mistakes(command: Command) -> list[str]:
    """Return what is wrong with a command: names of things that do not exist."""
    wrong = [
        f"{name} is no variable of docs/settings.md"
        for name in (one.partition("=")[0] for one in command.variables)
        if name.startswith("ALLHANDS_") and name not in list_settings()
    ]
    wrong += [
        f"there is no file {word}"
        for word in command.words
        if (path := re.match(r"[\w.-]+/[\w./-]*\w", word))
        and path[0].partition("/")[0] in _FOLDERS
        and not (ROOT / path[0]).exists()
    ]
    match command.words:
        case ():
            pass
        case ("allhands", *arguments):
            wrong += _find_cli_mistakes(arguments)
        case ("make", *targets):
            wrong += [
                f"make has no target {one}" for one in _list_targets(targets) - _read_targets()
            ]
        case ("pip", "install", *names):
            wrong += [
                f"the package has no extra {one}" for one in _list_extras(names) - _read_extras()
            ]
        case ("python" | "python3", "-m", module, *_):
            if importlib.util.find_spec(module.partition(".")[0]) is None:
                wrong.append(f"there is no module {module}")
        case ("python" | "python3", *_):
            pass
        case (program, *rest) if program in FOREIGN:
            if program != "helm" and "allhands" in rest:  # there it is a release's name
                wrong += _find_cli_mistakes(rest[rest.index("allhands") + 1 :])
        case (program, *_):
            if not program.startswith("./"):
                wrong.append(f"nothing is known of the program {program}")
    return wrong


def _find_cli_mistakes(arguments: Sequence[str]) -> list[str]:
    words = list(arguments)
    if words and words[-1] == _LIKE_THE_LAST:
        words.pop()
    if not words or words[0].startswith("-"):
        return []  # of `allhands` itself
    command: Any = _load_tree().get(words[0])
    if command is None:
        return [f"allhands has no command {words[0]}"]
    name = f"allhands {words.pop(0)}"
    if hasattr(command, "commands"):
        if not words or words[0] not in command.commands:
            return [f"{name} has no command {' '.join(words[:1])}"]
        name, command = f"{name} {words[0]}", command.commands[words[0]]
        words.pop(0)
    try:
        command.make_context(name, words)
    except _USAGE_ERROR as error:
        return [f"{name}: {error.format_message()}"]
    return []


@cache
def _load_tree() -> dict[str, Any]:
    return dict(load_commands())


@cache
def list_settings() -> frozenset[str]:
    """Return the names of the variables on the page of settings."""
    page = (ROOT / "docs/settings.md").read_text(encoding="utf-8")
    return frozenset(re.findall(r"\bALLHANDS_[A-Z_]+[A-Z]", page))


def _list_targets(words: Sequence[str]) -> set[str]:
    return {word for word in words if "=" not in word and not word.startswith("-")}


@cache
def _read_targets() -> frozenset[str]:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^([\w-]+):(?!=)", makefile, re.MULTILINE))


def _list_extras(names: Sequence[str]) -> set[str]:
    found = (re.match(r"allhands\[(.*)\]", name) for name in names)
    return {extra.strip() for match in found if match for extra in match[1].split(",")}


@cache
def _read_extras() -> frozenset[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return frozenset(project["optional-dependencies"])
