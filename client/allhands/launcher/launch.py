"""Run the ranks of a launch from start to end."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator

from allhands.launcher.child import keep_statuses
from allhands.launcher.plan import LaunchPlan
from allhands.launcher.rank_set import RankSet
from allhands.launcher.supervision import SignalReceived

_ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def launch(plan: LaunchPlan) -> int:
    """Run all ranks of the plan to their end; return the launcher's exit status.

    After a failure of a rank or a stall they are all started anew, as often as the plan says. No
    process of the launch outlives the call, or this process, whatever ends it. While it runs, it
    owns this process's handlers of SIGINT, SIGTERM, SIGHUP and SIGCHLD and its standard output.

    Raises:
        OSError: the launch could not begin.
    """
    rank_set = _make_rank_set(plan)
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
            rank_set = _make_rank_set(plan)
            await rank_set.print(f"restart {plan.restart_count} of {plan.max_restarts}")


def _make_rank_set(plan: LaunchPlan) -> RankSet:
    if not plan.hosts:
        return RankSet(plan)
    from allhands.launcher.host_set import HostSet  # which few launches need

    return HostSet(plan)


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
