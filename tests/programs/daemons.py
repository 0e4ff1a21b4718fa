"""Processes beside a coordinator."""

import asyncio
import sys
from pathlib import Path

from allhands_server.log.sqlite import SqliteEngine


def open_log(folder: str) -> None:
    """Open the log in a folder, and close it."""

    async def open_and_close() -> None:
        await (await SqliteEngine.open(Path(folder))).close()

    asyncio.run(open_and_close())


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
