"""A loop in C over one TCP connection as a benchmarked system: what two hosts can do at best.

It has none of what a library has: no third rank, no checks of what the peer calls, no deadlines.
"""

import ctypes
import os
import platform
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from allhands.bench.case import BenchCase
from allhands.bench.data import Array, get_carrier
from allhands.bench.systems import forms
from allhands.bench.systems.system import Call, Unsupported, make_round_trip

_CONNECT_SECONDS = 60.0


class TcpLoop:
    """One of the two ranks at the ends of a connection."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        self._library = _compile()
        self._connection: socket.socket | None = None
        if self.size == 2:
            self._connection = _accept(address) if self.rank == 0 else _connect(address)
            self._connection.settimeout(None)  # else Python's sockets do not block
            self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.about = {"python": platform.python_version(), "calls": "C, blocking"}

    def allocate(self, elements: int, dtype: str) -> Array:
        return np.empty(elements, get_carrier(dtype))

    def bind(self, case: BenchCase, x: Array, out: Array, seed: int) -> Call:
        if self._connection is None:
            raise Unsupported("one connection joins two ranks")
        send, receive = self._get("tcp_send"), self._get("tcp_receive")
        exchange = self._get("tcp_exchange")
        mine, room, count = x.ctypes.data, out.ctypes.data, ctypes.c_size_t(x.nbytes)
        match case.operation:
            case "sendrecv":
                return make_round_trip(
                    self.rank, lambda to: send(mine, count), lambda by: receive(room, count)
                )
            case "broadcast":
                move = send if self.rank == 0 else receive
                return lambda: move(mine, count)
            case "barrier":
                word = ctypes.create_string_buffer(2)
                there, here = ctypes.addressof(word), ctypes.addressof(word) + 1
                return lambda: exchange(there, here, ctypes.c_size_t(1))
            case "exchange":
                return lambda: exchange(mine, room, count)
            case "all_gather":
                return self._bind_all_gather(x, out, exchange)
            case "all_reduce":
                return self._bind_all_reduce(case, x)
        raise forms.refuse("a loop over TCP", case.operation)

    def _bind_all_gather(self, x: Array, out: Array, exchange: Callable[..., None]) -> Call:
        mine, theirs = np.split(out, 2)[:: 1 if self.rank == 0 else -1]
        given, room, count = x.ctypes.data, theirs.ctypes.data, ctypes.c_size_t(x.nbytes)

        def call() -> None:
            exchange(given, room, count)
            mine[:] = x

        return call

    def _bind_all_reduce(self, case: BenchCase, x: Array) -> Call:
        if case.dtype != "float32":
            raise Unsupported("the loop over TCP adds float32 only")
        room = np.zeros_like(x)
        reduce = self._get("tcp_all_reduce")
        pointers, elements = (x.ctypes.data, room.ctypes.data), ctypes.c_size_t(x.size)

        def call(kept: Array = room) -> None:  # the memory lives as long as the call
            reduce(*pointers, elements)

        return call

    def _get(self, name: str) -> Callable[..., None]:
        """Return a function of the library on the connection; it raises OSError."""
        assert self._connection is not None
        function = getattr(self._library, name)
        fd, pointer = self._connection.fileno(), ctypes.c_void_p
        pointers = 1 if name in ("tcp_send", "tcp_receive") else 2
        function.argtypes = [ctypes.c_int, *[pointer] * pointers, ctypes.c_size_t]

        def call(*arguments: Any) -> None:
            if function(fd, *arguments) != 0:
                number = ctypes.get_errno()
                raise OSError(number, f"{name}: {os.strerror(number)}")

        return call

    def get_variant(self) -> str | None:
        return None

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _compile() -> ctypes.CDLL:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("the loop over TCP needs a C compiler")
    source = Path(__file__).with_name("tcp_loop.c")
    with tempfile.TemporaryDirectory(prefix="allhands-bench-") as folder:
        library = str(Path(folder, "tcp_loop.so"))
        options = ("-O3", "-shared", "-fPIC", "-o", library)
        subprocess.run([compiler, *options, str(source)], check=True)
        return ctypes.CDLL(library, use_errno=True)


def _accept(address: tuple[str, int]) -> socket.socket:
    with socket.create_server(address) as server:
        server.settimeout(_CONNECT_SECONDS)
        return server.accept()[0]


def _connect(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + _CONNECT_SECONDS
    while True:
        try:
            return socket.create_connection(address, _CONNECT_SECONDS)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)  # rank 0 listens soon; nothing tells when
