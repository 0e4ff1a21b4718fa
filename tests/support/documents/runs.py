"""Runs of code blocks: Python in worlds of processes, sessions of commands at a daemon."""

import doctest
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from programs import document_blocks
from support.documents.blocks import Block
from support.documents.commands import read_session, split_commands
from support.documents.pages import ROOT
from support.ranks.processes import Cluster
from support.served_daemon import find_free_port

DAEMON = "127.0.0.1:7070"
"""Address that daemons have in pages; a block that is run finds one at another port."""
MASTER = '"host0", 29400'
"""Arguments that name the host of a store; a block that is run has it on loopback."""
_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True, slots=True)
class BlockRunner:
    """Runs the blocks of a page in a folder, with processes of a test's cluster."""

    cluster: Cluster
    folder: Path
    page: list[Block]
    """All blocks of the page: some of them are files for others."""

    def run_python(self, block: Block) -> None:
        """Run a block of Python on as many ranks as it wants.

        Raises:
            AssertionError: a rank ended with an error, which is in the text.
        """
        script = block.script.replace(MASTER, f'"127.0.0.1", {find_free_port()}')
        variables: dict[str, Any] = {}
        if "torch" in block.options:
            variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
        if self._needs_daemon(block):
            url = self.cluster.daemon()
            variables["ALLHANDS_URL"] = f"{url}/demo"
            script = script.replace(DAEMON, url.removeprefix("ah://"))
        path = str(ROOT / block.page)
        arguments = (script, path, str(self.folder))
        if "ranks" in block.options:
            size = int(block.options["ranks"])
            started = self.cluster.world(size, document_blocks.run_script, *arguments, **variables)
        else:
            started = [self.cluster.start(document_blocks.run_script, *arguments, **variables)]
        failures = {
            f"process {place}: status {status}\n{''.join(process.errors)}"
            for place, process in enumerate(started)
            if (status := process.ended()) != 0
        }
        assert not failures, "\n".join(sorted(failures))

    def run_session(self, block: Block) -> None:
        """Run the commands of a session and compare what they print.

        Raises:
            AssertionError: a command failed, or printed something else.
        """
        for other in self.page:
            if name := other.options.get("file"):
                (self.folder / name).write_text(other.code.text, encoding="utf-8")
        has_daemon = self._needs_daemon(block)
        variables = {"ALLHANDS_URL": self.cluster.daemon()} if has_daemon else {}
        for line, shown in read_session(block.code.text):
            want, got = _sort_ranks(shown), _sort_ranks(self._run_command(line, variables))
            is_same = doctest.OutputChecker().check_output(want, got, _FLAGS)
            assert is_same, f"{block.name}: $ {line}prints\n{got}and not\n{want}"

    def _needs_daemon(self, block: Block) -> bool:
        return "daemon" in block.options or "ranks" in block.options

    def _run_command(self, line: str, variables: dict[str, Any]) -> str:
        """Run a command of allhands; return what it writes to standard output."""
        [command] = split_commands(line)
        program, *arguments = command.words
        assert program == "allhands", f"only commands of allhands run here, not {program}"
        output = self.folder / "output"
        process = self.cluster.start(
            document_blocks.run_command,
            str(self.folder),
            command.stdin or "/dev/null",
            str(output),
            arguments,
            **variables,
        )
        status = process.ended()
        assert status == 0, f"$ {line}ended with status {status}:\n{''.join(process.errors)}"
        return output.read_text(encoding="utf-8")


def _sort_ranks(text: str) -> str:
    """Put lines of ranks, `[2] ...`, in the order of ranks: they come in any."""
    lines = text.splitlines(keepends=True)
    return "".join(sorted(lines) if lines and lines[0].startswith("[") else lines)
