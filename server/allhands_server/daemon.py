"""The daemon: a process with one coordinator, uvloop, signals and a log on stderr."""

import asyncio
import logging
import signal
import sys

import uvloop

from allhands_server import embedded
from allhands_server.config import ServerConfig
from allhands_server.log.errors import LogError
from allhands_server.log_lines import configure_log

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main(config: ServerConfig) -> int:
    """Serve until a signal; return the exit status of the process.

    The first SIGTERM or SIGINT drains: running worlds get `config.drain_timeout` seconds to end.
    A second one ends at once, and so does the first where a log keeps the worlds for the next
    start. The status is 0 after a drain or with a log, 1 where a world was cut off or the
    coordinator could not listen, 2 where the config is wrong.
    """
    configure_log(config.log_format, config.log_level)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(config))
    except ValueError as error:
        logger.error("%s", error)
        return 2
    except LogError as error:
        logger.error("%s", error)
        return 1
    except OSError as error:
        logger.error("%s", error if error.filename is not None else error.strerror or error)
        return 1


async def _serve(config: ServerConfig) -> int:
    signals: asyncio.Queue[signal.Signals] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, signals.put_nowait, number)
    running = await embedded.start(config)
    if running.http_url and sys.stderr.isatty():
        # On a terminal alone, and no line of the log: what keeps logs would keep the secret.
        url, seconds = running.make_page_link()
        sys.stderr.write(f"{url}\n(opens the page in one browser, within {seconds:.0f} s)\n")
    serving = asyncio.create_task(_serve_until_signal(running, config, signals))
    failing = asyncio.create_task(running.wait_failure())
    try:
        await asyncio.wait((serving, failing), return_when=asyncio.FIRST_COMPLETED)
        return 0 if serving.done() and await serving else 1
    finally:
        for task in (serving, failing):
            task.cancel()
        await asyncio.gather(serving, failing, return_exceptions=True)
        await running.stop()


async def _serve_until_signal(
    running: embedded.RunningCoordinator,
    config: ServerConfig,
    signals: "asyncio.Queue[signal.Signals]",
) -> bool:
    """Serve until a signal, then drain; return whether all worlds ended."""
    first = await signals.get()
    if running.is_durable:
        logger.info("%s: going down; worlds go on with the next start", first.name)
        return True
    logger.info("%s: draining, for up to %g s", first.name, config.drain_timeout)
    return await _drain(running, config, first, signals)


async def _drain(
    running: embedded.RunningCoordinator,
    config: ServerConfig,
    first: signal.Signals,
    signals: "asyncio.Queue[signal.Signals]",
) -> bool:
    reason = f"it got {first.name}"
    draining = asyncio.create_task(running.drain(config.drain_timeout, reason))
    second = asyncio.create_task(signals.get())
    try:
        await asyncio.wait((draining, second), return_when=asyncio.FIRST_COMPLETED)
        if draining.done():
            ended = await draining
            logger.info("drained" if ended else "going down though worlds are still running")
            return ended
        logger.info("%s: going down at once", (await second).name)
        return False
    finally:
        draining.cancel()
        second.cancel()
        await asyncio.gather(draining, second, return_exceptions=True)
