"""Unary requests of a member: verdicts, monitored barriers, group changes."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from allhands.coordinator.attempts import RETRY_SECONDS
from allhands.coordinator.call_failed import CallFailed, StatusCode
from allhands.coordinator.endpoint import ChannelConfig
from allhands.coordinator.http2.stub import Channel, make_stub
from allhands.coordinator.status_errors import translate_error
from allhands.coordinator.world_member import WorldMember
from allhands.deadlines import format_timeout
from allhands.errors import (
    CollectiveTimeout,
    CoordinatorUnavailable,
    MembershipChanged,
)
from allhands.verdicts import CallCancellation, Verdict
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.verdict_codec import decode_cancellation, decode_verdict

logger = logging.getLogger(__name__)

T = TypeVar("T")

_VERDICT_KEY = "allhands-verdict-bin"
_GIVEN_UP_KEY = "allhands-given-up-bin"
_MAX_VERDICT_BYTES = 48 << 10
_VERDICT_SLACK = 2.0
"""Seconds by which the RPC for a verdict outlasts the call: it must not end before its answer."""
_JUDGE_ALONE_SECONDS = 0.3
"""Seconds before a call's deadline from which this rank itself finds out who is missing."""
INQUIRY_SECONDS = 1.0


class SessionRequests:
    """Unary requests of a job's member beside its stream."""

    def __init__(self, channel_config: ChannelConfig, channel: Channel, job: str) -> None:
        self._channel_config = channel_config
        self._stub = make_stub(channel)
        self.job = job
        self.joined = wire.Joined()
        self.members: tuple[WorldMember, ...] = ()
        """Of its first group, or of the world, in the order of their ranks there."""
        self.epoch = 0
        self._is_settled = asyncio.Event()
        """Set while the session has a stream, and once it is over."""
        self._is_settled.set()
        self._is_over = False
        """Whether the session has lost its coordinator for good."""
        self._changes_asked = 0

    @property
    def is_durable(self) -> bool:
        """Whether the coordinator may be restarted, and has this session again then."""
        is_hosted = any(one.hosts_coordinator for one in self.members)  # it ends with its rank
        return self.joined.is_durable and not is_hosted

    async def _repeat(
        self, make_call: Callable[[float], Awaitable[T]], timeout: float, spare: float = 0.0
    ) -> T:
        """Make a call within `timeout` seconds, again while the coordinator is being restarted.

        It is given up `spare` seconds before the end.

        Raises:
            CallFailed: the call failed.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                return await make_call(deadline - time.monotonic())
            except CallFailed as error:
                is_away = error.status is StatusCode.UNAVAILABLE
                if not is_away or not self.is_durable or self._is_over:
                    raise
                remaining = deadline - spare - time.monotonic()
                if remaining <= RETRY_SECONDS:
                    raise
            await asyncio.sleep(RETRY_SECONDS)  # the stream may not have broken yet
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining - RETRY_SECONDS):
                    await self._is_settled.wait()

    async def wait_monitored_barrier(
        self, group: str, sequence: int, timeout: float
    ) -> Verdict | None:
        """Wait at a monitored barrier; return the verdict on missing ranks, else None.

        Raises:
            CoordinatorUnavailable, Refused: nobody can say.
        """
        request = wire.MonitoredBarrierRequest(
            job=self.job,
            member_id=self.joined.member_id,
            group=group,
            sequence=sequence,
            max_nbytes=_MAX_VERDICT_BYTES,
        )

        async def meet(remaining: float) -> None:
            request.remaining = remaining
            await self._stub.MonitoredBarrier(
                request,
                timeout=max(remaining, 0) + _VERDICT_SLACK,
                metadata=self._channel_config.metadata,
            )

        try:
            await self._repeat(meet, timeout)
        except CallFailed as error:
            found = dict(error.trailing_metadata() or ()).get(_VERDICT_KEY)
            if isinstance(found, bytes):
                return decode_verdict(wire.Verdict.FromString(found))
            doing = f"pass monitored_barrier #{sequence} of group {group!r}"
            if error.status is StatusCode.DEADLINE_EXCEEDED:
                raise CoordinatorUnavailable(f"{doing}: the coordinator does not answer") from error
            raise translate_error(error, doing, target=self._channel_config.target) from error
        return None

    async def judge(
        self, group: str, sequence: int, operation: str, waiting_on: Sequence[int], timeout: float
    ) -> Verdict | CallCancellation | None:
        """Request the verdict on a call; the answer comes once `timeout` seconds have passed.

        Returns None when there is no answer.
        """
        request = wire.AwaitVerdictRequest(
            job=self.job,
            member_id=self.joined.member_id,
            group=group,
            sequence=sequence,
            operation=operation,
            waiting_on=waiting_on,
            max_nbytes=_MAX_VERDICT_BYTES,
        )

        async def ask(remaining: float) -> None:
            request.remaining = max(remaining, 0.0)
            await self._stub.AwaitVerdict(
                request,
                timeout=request.remaining + _VERDICT_SLACK,
                metadata=self._channel_config.metadata,
            )

        try:
            await self._repeat(ask, timeout, _JUDGE_ALONE_SECONDS)
        except CallFailed as error:
            trailers = dict(error.trailing_metadata() or ())
            found, given = trailers.get(_VERDICT_KEY), trailers.get(_GIVEN_UP_KEY)
            if isinstance(given, bytes):
                return decode_cancellation(wire.CallCancelled.FromString(given))
            if isinstance(found, bytes):
                return decode_verdict(wire.Verdict.FromString(found))
            logger.debug("no verdict on %s #%d: %s", operation, sequence, error.details())
        return None

    async def request_group_change(
        self, request: wire.GroupChangeRequest, timeout: float
    ) -> wire.GroupChange:
        """Decide on a group change with the present members of a group; see coordinator.proto.

        Raises:
            CollectiveTimeout: not all of them made the same request within `timeout` seconds.
            MembershipChanged: this worker is no member any more.
            Refused: members made another request; the text names them.
            CoordinatorUnavailable: the coordinator does not answer.
        """
        self._changes_asked += 1
        request.job, request.member_id = self.job, self.joined.member_id
        request.number = self._changes_asked
        what = f"{request.kind} of group {request.group!r}"

        async def decide(remaining: float) -> wire.GroupChange:
            return await self._stub.Reform(
                request, timeout=max(remaining, 0.001), metadata=self._channel_config.metadata
            )

        try:
            return await self._repeat(decide, timeout)
        except CallFailed as error:
            said = error.details() or error.status.name
            match error.status:
                case StatusCode.DEADLINE_EXCEEDED:
                    text = f"{what} timed out after {format_timeout(timeout)}: {said}"
                    raise CollectiveTimeout(text, op=request.kind, seq=0) from error
                case StatusCode.ABORTED:
                    expelled = MembershipChanged(
                        f"{what} cannot run: {said}",
                        old_epoch=self.epoch,
                        new_epoch=self.epoch + 1,
                    )
                    expelled.is_final = True
                    raise expelled from error
            raise translate_error(error, what, target=self._channel_config.target) from error

    async def all_present(self, ranks: Sequence[int]) -> bool:
        """Ask whether these ranks are still members; False also when there is no answer."""
        try:
            job = await self._stub.DescribeJob(
                wire.DescribeJobRequest(job=self.job),
                timeout=INQUIRY_SECONDS,
                metadata=self._channel_config.metadata,
            )
        except CallFailed as error:
            logger.debug("not told who is present: %s", error.details())
            return False
        there = {one.rank for one in job.members if one.state == wire.MEMBER_STATE_JOINED}
        return there.issuperset(ranks)
