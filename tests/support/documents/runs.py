"""Runs of code blocks: Python in worlds of processes, sessions of commands."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from programs import document_blocks
from support.documents.blocks import Block
from support.documents.pages import ROOT
from support.documents.sessions import ADDRESSES, Session
from support.ranks.forking import PATIENCE
from support.ranks.processes import Cluster
from support.served_daemon import find_free_port

MASTER = '"host0", 29400'
"""Arguments that name the host of a store in pages; a block that is run has it on loopback."""


@dataclass(frozen=True, slots=True)
class BlockRunner:
    """Runs the blocks of a page in a folder, with processes of a test's cluster."""

    cluster: Cluster
    folder: Path
    page: list[Block]
    """All blocks of the page: some of them are files for others, or of one session."""

    def run_python(self, block: Block) -> None:
        """Run a block of Python on as many ranks as it wants.

        Raises:
            AssertionError: a rank ended with an error, which is in the text.
        """
        script = block.script.replace(MASTER, f'"127.0.0.1", {find_free_port()}')
        variables: dict[str, Any] = {}
        if "torch" in block.options:
            variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(find_free_port())}
        if _needs_daemon(block):
            url = self.cluster.daemon()
            variables["ALLHANDS_URL"] = f"{url}/demo"
            script = script.replace(ADDRESSES[0], url.removeprefix("ah://"))
        arguments = (script, str(ROOT / block.page), str(self.folder))
        if "ranks" in block.options:
            size = int(block.options["ranks"])
            started = self.cluster.world(size, document_blocks.run_script, *arguments, **variables)
        else:
            started = [self.cluster.start(document_blocks.run_script, *arguments, **variables)]
        for process in started:
            process.child.wait(5 * PATIENCE)  # importing torch takes long where all is busy
        failures = {
            f"process {place}: status {status}\n{''.join(process.errors)}"
            for place, process in enumerate(started)
            if (status := process.ended()) != 0
        }
        assert not failures, "\n".join(sorted(failures))

    def run_session(self, block: Block) -> None:
        """Run a session that begins with this block, and compare what its commands print.

        Raises:
            AssertionError: a command failed, or printed something else.
        """
        name = block.options["session"]
        blocks = [one for one in self.page if name and one.options.get("session") == name]
        if blocks and blocks[0] != block:
            return  # the first block of a session runs it whole
        for other in self.page:
            if file := other.options.get("file"):
                (self.folder / file).write_text(other.code.text, encoding="utf-8")
        session = Session(self.cluster, self.folder)
        if _needs_daemon(block):
            session.variables["ALLHANDS_URL"] = self.cluster.daemon()
        for one in blocks or [block]:
            session.run(one.code.text, one.name)


def _needs_daemon(block: Block) -> bool:
    return "daemon" in block.options or "ranks" in block.options
