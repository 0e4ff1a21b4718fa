"""Rules for the code blocks of pages, one for each kind that a fence names.

A kind without a rule is an error, so that no block is left out because of its name.
"""

import configparser
import json
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from ruamel.yaml import YAML
from sybil import Document, Example, Region, Sybil

from support.documents.blocks import Block, find_blocks
from support.documents.commands import find_mistakes, read_session, split_commands
from support.documents.pages import ROOT, name_page
from support.documents.runs import BlockRunner

Rule = Callable[[Block, BlockRunner], None]
"""Raises an error if the block does not hold it."""


def list_documents() -> list[Path]:
    """Return the pages whose blocks are run."""
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def list_examples() -> list[Example]:
    """Return the code blocks of all pages, each an example whose evaluator is its rule.

    Raises:
        ValueError: a block has no kind, or one without a rule.
    """
    sybil = Sybil(parsers=[_parse])
    return [example for page in list_documents() for example in sybil.parse(page)]


def get_block(example: Example) -> Block:
    """Return the block of an example."""
    assert isinstance(example.parsed, Block)
    return example.parsed


def evaluate(example: Example, runner: BlockRunner) -> None:
    """Check an example, or run it.

    Raises:
        AssertionError: it does not do what its page says.
    """
    example.document.namespace["runner"] = runner
    example.evaluate()


def get_rule(block: Block) -> Rule:
    """Return the rule of a block's kind.

    Raises:
        ValueError: there is none.
    """
    if block.kind.startswith("{"):
        return _leave_to_sphinx
    if block.kind not in RULES:
        raise ValueError(f"{block.name}: {block.kind!r} has no rule; there are: {', '.join(RULES)}")
    return RULES[block.kind]


def _parse(document: Document) -> Iterator[Region]:
    starts = [0]
    for line in document.text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for block in find_blocks(document.text, name_page(Path(document.path))):
        rule = get_rule(block)

        def evaluate(example: Example, rule: Rule = rule) -> None:
            rule(get_block(example), example.namespace["runner"])

        end = block.code.line - 1 + len(block.code.text.splitlines())
        yield Region(starts[block.line - 1], starts[end], block, evaluate)


def _leave_to_sphinx(_block: Block, _runner: BlockRunner) -> None:
    """Check nothing: a directive of the site, whose build is a test of its own."""


def _run_python(block: Block, runner: BlockRunner) -> None:
    runner.run_python(block)


def _check_shell(block: Block, _runner: BlockRunner) -> None:
    _check_commands(block.code.text)


def _check_session(block: Block, runner: BlockRunner) -> None:
    for command, _ in read_session(block.code.text):
        _check_commands(command)
    if "session" in block.options:
        runner.run_session(block)


def _check_commands(text: str) -> None:
    wrong = [
        f"{command.text}: {mistake}"
        for command in split_commands(text)
        for mistake in find_mistakes(command)
    ]
    assert wrong == []


def _check_text(block: Block, _runner: BlockRunner) -> None:
    assert "$ " not in block.code.text, "commands belong in a block of the kind console"


def _parse_yaml(block: Block, _runner: BlockRunner) -> None:
    assert list(YAML(typ="safe").load_all(block.code.text))


def _parse_json(block: Block, _runner: BlockRunner) -> None:
    json.loads(block.code.text)


def _parse_toml(block: Block, _runner: BlockRunner) -> None:
    assert tomllib.loads(block.code.text)


def _parse_ini(block: Block, _runner: BlockRunner) -> None:
    # A unit of systemd may have a name twice.
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.read_string(block.code.text)
    assert parser.sections()


def _parse_dockerfile(block: Block, _runner: BlockRunner) -> None:
    command = shutil.which("hadolint")
    assert command is not None, "hadolint is among the tools of development"
    done = subprocess.run(
        [command, "--failure-threshold", "error", "-"],
        input=block.code.text,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


RULES: Mapping[str, Rule] = {
    "python": _run_python,
    "sh": _check_shell,
    "console": _check_session,
    "text": _check_text,
    "yaml": _parse_yaml,
    "json": _parse_json,
    "toml": _parse_toml,
    "ini": _parse_ini,
    "dockerfile": _parse_dockerfile,
}
