"""Ranks of launchers, together a world.

This is a script: its first argument names a function, the others are for that.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import allhands as ah


def _raise() -> None:
    raise ValueError("the reason")


def _say_and_exit() -> None:
    print("the reason", file=sys.stderr)
    sys.exit(3)


def _leave_and_raise() -> None:
    try:
        raise ValueError("the reason")
    finally:
        ah.destroy_process_group()


ENDS: dict[str, Callable[[], object]] = {
    "raise": _raise,
    "exit": _say_and_exit,
    "leave and raise": _leave_and_raise,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exit well": lambda: sys.exit(0),
    "exit 3 at once": lambda: os._exit(3),
    "exit 0 at once": lambda: os._exit(0),
}
"""How a rank goes, by what is said of it."""


def lose_rank_one_in_a_collective(end: str) -> None:
    ah.init_process_group()
    ah.barrier()
    if ah.get_rank() == 1:
        ENDS[end]()
    ah.all_reduce(np.ones(4))


def lose_rank_two_between_calls(end: str, length: str) -> None:
    ah.init_process_group()
    x = np.ones(int(length))
    ah.all_reduce(x)
    if ah.get_rank() == 2:
        ENDS[end]()
    while True:
        ah.all_reduce(x)


def block_elsewhere(links: str) -> None:
    """Block in groups without the failing rank: rank 0 twice, rank 1 beside a signal handler."""
    ah.init_process_group(timeout=100, backend=links)
    pair = ah.new_group([0, 1])
    threads = ah.new_group([0, 1])
    with ah.connect() as control:  # for all at once, also if one of them ends then
        control.barrier("ready", str(ah.get_rank()), ["0", "1", "2"])
    if ah.get_rank() == 2:
        os._exit(3)
    if ah.get_rank() == 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("its own handler"))
        signal.pause()

    def block() -> None:
        try:
            ah.barrier(group=threads)
        except ah.GroupAborted as error:
            print(error.reason)

    thread = threading.Thread(target=block)
    thread.start()
    try:
        ah.barrier(group=pair)
    except SystemExit as error:
        thread.join()
        print("blocked", error.code)
        raise


def show_addresses() -> None:
    ah.init_process_group(timeout=30)
    ah.barrier()
    with ah.connect() as control:
        told = {one.address.rpartition(":")[0] for one in control.job().members}
    if ah.get_rank() == 0:
        print(*told)
    ah.destroy_process_group()


def show_how_rank_one_ended(end: str) -> None:
    ah.init_process_group(timeout=30)
    ah.barrier()
    if ah.get_rank() == 1:
        ENDS[end]()
    try:
        ah.barrier()
    except ah.PeerFailed as error:
        [absent] = error.verdict.absent
        print(absent.rank, absent.state, absent.exit_status, absent.signal, absent.text)
    sys.stdout.flush()
    os._exit(0)


def show_place() -> None:
    ah.init_process_group()
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
    told = [os.environ[name] for name in names]
    assert 0 < int(os.environ["MASTER_PORT"]) < 1 << 16
    print(*told, ah.get_rank(), ah.get_world_size(), ah.get_node_local_rank())


def show_size() -> None:
    ah.init_process_group()
    if ah.get_rank() == 0:
        print(json.dumps({"what": "done", "size": ah.get_world_size()}))
    ah.destroy_process_group()


def show_sum() -> None:
    ah.init_process_group()
    x = np.ones(1)
    ah.all_reduce(x)
    print("sum", x[0])
    ah.destroy_process_group()


def show_modules() -> None:
    """Print the modules of a rank that has reduced an array."""
    ah.init_process_group()
    ah.all_reduce(np.ones(1))
    print(json.dumps(sorted(sys.modules)))
    ah.barrier()
    ah.destroy_process_group()


def count_threads() -> None:
    """Print how many threads the system knows of a rank that has reduced an array."""
    ah.init_process_group()
    ah.all_reduce(np.ones(1))
    print(len(os.listdir("/proc/self/task")))
    ah.barrier()
    ah.destroy_process_group()


def show_threads() -> None:
    """Print the names of the threads of a rank that has reduced an array."""
    ah.init_process_group()
    ah.all_reduce(np.ones(1))
    print(json.dumps([one.name for one in threading.enumerate()]))
    ah.barrier()
    ah.destroy_process_group()


def show_sums_and_plaintext() -> None:
    """Print sums of several sizes, and how many links to peers carried them in plaintext."""
    import grpc.aio

    from allhands.transport import socket_stream
    from allhands.transport.socket_link import SocketLink
    from allhands.transport.tls_socket import TlsSocket

    plain: list[object] = []
    links: list[object] = []
    open_plain = grpc.aio.insecure_channel

    def watch_link(connection: Any, on_broken: Any) -> Any:
        links.append(connection)
        if not isinstance(connection, TlsSocket):
            plain.append(connection)
        return SocketLink(connection, on_broken)

    def watch_channel(*arguments: Any, **options: Any) -> Any:
        plain.append(arguments)
        return open_plain(*arguments, **options)

    setattr(socket_stream, "SocketLink", watch_link)  # noqa: B010
    setattr(grpc.aio, "insecure_channel", watch_channel)  # noqa: B010
    ah.init_process_group()
    for count in (1, 1000, 100_000, 5_000_000):
        x = np.arange(count, dtype=np.float64)
        ah.all_reduce(x)
        assert np.array_equal(x, 2.0 * np.arange(count))
    print("sums, plaintext", len(plain), "sockets", len(links))
    ah.destroy_process_group()


def join_and_leave() -> None:
    ah.init_process_group()
    ah.destroy_process_group()
    print("ran")


def set_a_key(url: str) -> None:
    ah.init_process_group(url, rank=0, world_size=1)
    ah.store().set("key", b"value")
    ah.destroy_process_group()


def stall_at_first(attempts: str, status: str = "0") -> None:
    """Leave rank 0 alone in a call, in so many attempts; then end with the status."""
    ah.init_process_group()
    attempt = os.environ["ALLHANDS_RESTART_COUNT"]
    print("attempt", attempt, ah.store().add("attempts", 1) > 0, flush=True)
    if int(attempt) < int(attempts) and ah.get_rank() == 1:
        stay_outside()
    ah.all_reduce(np.zeros(1), label="gradients")
    ah.destroy_process_group()
    sys.exit(int(status))


def stay_outside() -> None:
    signal.pause()


def wait_in_vain() -> None:
    """Let the others wait for rank 1 until their deadline."""
    ah.init_process_group(timeout=2)
    ah.barrier()
    if ah.get_rank() == 1:
        stay_outside()
    ah.all_reduce(np.zeros(1))


def come_late(seconds: str) -> None:
    """Let rank 0 wait so long, then call on."""
    ah.init_process_group()
    if ah.get_rank() == 1:
        time.sleep(float(seconds))
    ah.all_reduce(np.zeros(1))
    ah.barrier()
    ah.destroy_process_group()


def die_at_first(how: str) -> None:
    """End the first attempt within the world, by a kill or an abort; then call together."""
    ah.init_process_group()
    attempt = int(os.environ["ALLHANDS_RESTART_COUNT"])
    if attempt == 0:
        ah.store().set("key", b"")
    ah.barrier()
    if attempt == 0 and ah.get_rank() == 1:
        if how == "abort":
            ah.abort("the reason")
        os.kill(os.getpid(), signal.SIGKILL)
    ah.barrier()
    print("done", ah.store().check(["key"]), flush=True)
    ah.destroy_process_group()


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
