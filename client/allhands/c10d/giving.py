"""The calls of a group, whose works give what the caller says: lists, where c10d has lists."""

from allhands.collectives.algorithms.cost import Wire
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.primitive import Build, Collectives, Timeout
from allhands.collectives.request import Native
from allhands.collectives.signature import Result
from allhands.engine.work.work import Work
from allhands.group.group import Group


class Giving(Collectives[Work]):
    """One call of a group: when it has ended well, its work gives `result`."""

    def __init__(self, group: Group, result: Result) -> None:
        self._group = group
        self._result = result
        self.deterministic = group.deterministic

    @property
    def name(self) -> str:
        return self._group.name

    @property
    def rank(self) -> int:
        return self._group.rank

    @property
    def size(self) -> int:
        return self._group.size

    @property
    def _wire(self) -> Wire | None:
        return self._group._wire

    def send(self, x: AnyArray, dst: int, tag: int, timeout: Timeout) -> Work:
        """Send `x` to rank `dst`; see `Group.send`."""
        return self._message("send", *self._group.check_send(x, dst, tag), tag, timeout)

    def recv(self, x: AnyArray, src: int | None, tag: int, timeout: Timeout) -> Work:
        """Overwrite `x` with a message; see `Group.recv`."""
        return self._message("recv", *self._group.check_recv(x, src, tag), tag, timeout)

    def _message(
        self, operation: str, array: Array, peer: int | None, tag: int, timeout: Timeout
    ) -> Work:
        return self._group._exchange(operation, array, self._result, peer, tag, timeout, None)

    def _start(
        self, native: Native, build: Build, result: Result, timeout: Timeout, label: str | None
    ) -> Work:
        return self._group._start(native, build, self._result, timeout, label)

    def _start_foreign(
        self, native: Native, result: Result, timeout: Timeout, label: str | None
    ) -> Work:
        return self._group._start_foreign(native, self._result, timeout, label)
