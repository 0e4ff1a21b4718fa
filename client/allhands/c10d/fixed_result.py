"""Calls of a group with a given result, such as c10d's lists."""

from allhands.collectives.algorithms.cost import LinkCost
from allhands.collectives.arguments import AnyArray
from allhands.collectives.buffer import Array
from allhands.collectives.composite_call import make_custom_reduction
from allhands.collectives.primitive import CallTimeout, Collectives
from allhands.collectives.primitive_call import PrimitiveCall
from allhands.collectives.signature import Result
from allhands.collectives.staging import Outputs
from allhands.engine.work.work import Work
from allhands.group.group import Group


class FixedResultCollectives(Collectives[Work]):
    """One call of a group; its work returns `result` after success."""

    _stages_outputs = False

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
    def _link_cost(self) -> LinkCost | None:
        return self._group.submitter.engine.link_cost

    def send(self, x: AnyArray, dst: int, tag: int, timeout: CallTimeout) -> Work:
        """Send `x` to rank `dst`; see `Group.send`."""
        return self._start_p2p("send", *self._group.check_send(x, dst, tag), tag, timeout)

    def recv(self, x: AnyArray, src: int | None, tag: int, timeout: CallTimeout) -> Work:
        """Overwrite `x` with a message; see `Group.recv`."""
        found = self._group.check_recv(x, src, tag, Outputs(self._stages_outputs))
        return self._start_p2p("recv", *found, tag, timeout)

    def _start_p2p(
        self, operation: str, array: Array, peer: int | None, tag: int, timeout: CallTimeout
    ) -> Work:
        return self._group.submitter.start_p2p(
            operation, array, self._result, peer, tag, timeout, None
        )

    def _start(self, call: PrimitiveCall, timeout: CallTimeout, label: str | None) -> Work:
        fixed = PrimitiveCall(call.request, call.build, self._result)
        return self._group.submitter.start(fixed, timeout, label)

    def _start_custom_reduction(
        self, call: PrimitiveCall, timeout: CallTimeout, label: str | None
    ) -> Work:
        return self._group.submitter.start_composite(
            make_custom_reduction(PrimitiveCall(call.request, call.build, self._result)),
            timeout,
            label,
        )
