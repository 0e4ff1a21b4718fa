"""Run the ranks of a launch from start to end."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from allhands.launcher.child import keep_statuses
from allhands.launcher.embedded import make_client_endpoint
from allhands.launcher.own_events import Note, ignore_note
from allhands.launcher.plan import LaunchPlan
from allhands.launcher.rank_set import RankSet
from allhands.launcher.supervision import SignalReceived

if TYPE_CHECKING:
    from allhands.launcher.forking import ForkServer

_STDERR = 2
_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def launch(plan: LaunchPlan, fork_server: "ForkServer | None" = None) -> int:
    """Run all ranks of the plan to their end; return the launcher's exit status.

    After a failure of a rank or a stall they are all started anew, as often as the plan says. No
    process of the launch outlives the call, or this process, whatever ends it. While it runs, it
    owns this process's handlers of SIGINT, SIGTERM, SIGHUP and SIGCHLD and its standard output.
    `fork_server` is one that has been started for the ranks, and is the caller's to close.

    Raises:
        OSError: the launch could not begin.
    """
    if plan.placement.node or plan.outlets is None:
        return await _launch(plan, ignore_note, fork_server)
    from allhands.launcher.event_relay import relay_events  # which few launches need

    endpoint = make_client_endpoint(plan.endpoint)
    async with relay_events(endpoint, plan.endpoint.job, plan.outlets, _say) as note:
        return await _launch(plan, note, fork_server)


def _say(text: str) -> None:
    """Write a line of the launcher's to stderr, from any thread."""
    with contextlib.suppress(OSError):  # nobody is left to be told
        os.write(_STDERR, f"allhands: {text}\n".encode())


async def _launch(plan: LaunchPlan, note: Note, fork_server: "ForkServer | None") -> int:
    """Run all ranks, and those of further attempts; `note` takes events for the plan's sinks."""
    rank_set = _make_rank_set(plan, note, fork_server)
    received: list[signal.Signals] = []

    def handle(signum: signal.Signals) -> None:
        received.append(signum)
        rank_set.handle(SignalReceived(signum))

    with keep_statuses(), _handle_signals(handle):
        while True:
            status = await rank_set.run()
            if not rank_set.may_restart or plan.restart_count >= plan.max_restarts:
                return status
            if received:  # while the ranks were being ended
                return 128 + received[0]
            plan = plan.renew()
            # From here on a signal ends the new ranks as they start.
            rank_set = _make_rank_set(plan, note, None)
            note("restarted", f"restart {plan.restart_count} of {plan.max_restarts}")
            await rank_set.print(f"restart {plan.restart_count} of {plan.max_restarts}")


def _make_rank_set(plan: LaunchPlan, note: Note, fork_server: "ForkServer | None") -> RankSet:
    if not plan.hosts:
        return RankSet(plan, note=note, fork_server=fork_server)
    from allhands.launcher.host_set import HostSet  # which few launches need

    return HostSet(plan, note)


@contextlib.contextmanager
def _handle_signals(handle: Callable[[signal.Signals], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    # Whoever runs us under nohup wants us to survive the end of the terminal.
    is_immune = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    wanted = [one for one in _ENDING_SIGNALS if not (one is signal.SIGHUP and is_immune)]
    for signum in wanted:
        loop.add_signal_handler(signum, handle, signum)
    try:
        yield
    finally:
        for signum in wanted:
            loop.remove_signal_handler(signum)
