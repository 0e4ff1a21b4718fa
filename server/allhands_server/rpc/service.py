"""The gRPC service of the coordinator: messages in and out, refusals as status codes."""

import asyncio
import ipaddress
import logging
import math
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn, TypeAlias

import grpc
import grpc.aio
from google.protobuf.message import Message

from allhands_proto.authority import format_authority
from allhands_proto.call_metadata import find_grace
from allhands_proto.kv_handshake import derive_secret
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1.coordinator_pb2_grpc import CoordinatorServicer
from allhands_proto.verdict_codec import encode_cancellation, encode_verdict
from allhands_proto.verdicts import AbsentRank, CallCancellation, Verdict
from allhands_proto.versions import explain_mismatch, write_versions
from allhands_server.access import CALLER, SCOPED_PREFIX, Access, split_token
from allhands_server.addresses import format_worker_address
from allhands_server.coordinator import Coordinator
from allhands_server.host_memory import find_resident
from allhands_server.kv.calls import KV_CALLS, NOT_SLOWED, KvCall
from allhands_server.machine import requests
from allhands_server.machine.formatting import quote
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import R, Request
from allhands_server.refusal_status import bound_text
from allhands_server.request_origin import find_origin
from allhands_server.rpc import messages
from allhands_server.rpc.session_events import EventEncoder, EventForm
from allhands_server.session_stream import MOST_UNREAD, SessionStream

logger = logging.getLogger(__name__)

VERDICT_KEY = "allhands-verdict-bin"
GIVEN_UP_KEY = "allhands-given-up-bin"
LEADER_KEY = "allhands-leader"
RETRY_KEY = "allhands-retry-after"
# Bytes. A client takes 8 KiB of trailers unless it says that it takes more; there a verdict grows
# by a third (base64), a text threefold at worst (percent-encoding): see `bound_text`.
_USUAL_VERDICT = 3072
_LARGEST_VERDICT = 48 << 10
_SLACK = 1.0
_SLACK_PART = 0.4
"""Seconds that a verdict may take, of the time of an RPC that does not name its call's deadline."""
_SIDES = ("this coordinator", "the caller")
_LONGEST_LIFETIME = 1e9
_HOST = re.compile(r"[A-Za-z0-9._:%-]*", re.ASCII)
_LONGEST_HOST = 255
LinkMaker: TypeAlias = Callable[[str, str, str], tuple[str, float]]
"""From a token's id, a job and a host to a link and the seconds for which it opens the page."""
Context: TypeAlias = "grpc.aio.ServicerContext[Any, Any]"


class CoordinatorService(CoordinatorServicer):
    """Translate messages for the coordinator, which decides."""

    def __init__(
        self,
        coordinator: Coordinator,
        first_request_timeout: float,
        kv_port: int,
        kv_secret: bytes,
        beyond_loopback: bool = False,
        access: Access | None = None,
        addresses: Sequence[str] = (),
        kv_addresses: Sequence[str] = (),
        make_link: LinkMaker | None = None,
    ) -> None:
        """`make_link` makes links to the page of the HTTP port; None: there is no such port."""
        self._coordinator = coordinator
        self._make_link = make_link
        self._access = access or Access(coordinator)
        self._description = wire.CoordinatorDescription(
            kv_port=kv_port,
            kv_secret=kv_secret,
            beyond_loopback=beyond_loopback,
            is_durable=coordinator.is_durable,
            kv_verbs=KV_CALLS,
            addresses=addresses,
            kv_addresses=kv_addresses,
        )
        write_versions(self._description)
        self._first_request_timeout = first_request_timeout
        self._encoder = EventEncoder()

    # ------------------------------------------------------------ sessions

    async def Session(
        self, request_iterator: AsyncIterator[wire.SessionRequest], context: Context
    ) -> AsyncIterator[wire.SessionEvent]:
        async for event in self.serve_session(request_iterator, context):
            yield wire.SessionEvent.FromString(event)

    async def serve_session(
        self, request_iterator: AsyncIterator[wire.SessionRequest], context: Context
    ) -> AsyncIterator[bytes]:
        """Serve a session as `Session` does; its events are bytes, which members may share."""
        token = CALLER.get()
        try:
            first = await self._read_first(request_iterator)
            stream, job, form = self._open_stream(first, context, token)
        except Refused as refused:
            await _abort(context, refused.refusal)
        listening = asyncio.create_task(self._listen(stream.number, request_iterator, context))
        stream.on_overrun = partial(_drop_silent, asyncio.current_task(), stream, job)
        try:
            async for batch in stream.iterate_batches():
                for event in self._encoder.encode_batch(batch, form):
                    yield event
        except Refused as refused:
            ended = f"ended: {refused}"
            self._access.note(token, "join", "Session", job, context.peer(), ended)
            await _abort(context, refused.refusal)
        finally:
            listening.cancel()
            self._coordinator.on_session_broken(stream.number)
            await asyncio.wait([listening])

    async def _read_first(
        self, requests: AsyncIterator[wire.SessionRequest]
    ) -> wire.SessionRequest:
        try:
            async with asyncio.timeout(self._first_request_timeout):
                first = await anext(requests, None)
        except TimeoutError:
            first = None
        if first is None or first.WhichOneof("request") not in ("join", "resume"):
            raise Refused(Status.INVALID_ARGUMENT, "a session begins with a Join")
        return first

    def _open_stream(
        self, first: wire.SessionRequest, context: Context, token: str
    ) -> tuple[SessionStream, str, EventForm]:
        """Open a new or a broken session; return also its job, and the form of its events."""
        opening = first.resume if first.HasField("resume") else first.join
        form = EventForm(
            opening.takes_batches,
            opening.takes_conditions,
            first.join.takes_packed_members,
            opening.takes_members_left,
        )
        if problem := explain_mismatch(opening, *_SIDES):
            raise Refused(Status.FAILED_PRECONDITION, problem)
        if first.HasField("resume"):
            resume = messages.decode_resume(first.resume)
            stream = self._coordinator.resume(resume, context.peer())
            return stream, resume.job, form
        join = first.join
        if not 0 < join.port < 65536:
            raise Refused(Status.INVALID_ARGUMENT, f"no such port: {join.port}")
        if not 0 <= join.data_port < 65536:
            raise Refused(Status.INVALID_ARGUMENT, f"no such port: {join.data_port}")
        decoded = messages.decode_join(join, _get_worker_address(join, context))
        stream = self._coordinator.join(decoded, context.peer(), token)
        return stream, join.job, form

    async def _listen(
        self, session: int, requests: AsyncIterator[wire.SessionRequest], context: Context
    ) -> None:
        """Pass on a member's messages until the member ends the stream."""
        try:
            async for request in requests:
                message = messages.decode_member_message(request)
                if message is not None:
                    self._coordinator.on_message(session, message, request.number)
        except Refused as refused:
            self._coordinator.on_session_broken(session, refused.refusal)
        self._coordinator.on_session_broken(session)

    # ------------------------------------------------------------ requests

    async def _ask(self, request: Request[R], context: Context) -> R:
        try:
            origin = find_origin(context.invocation_metadata())
            return await self._coordinator.ask(request, _find_remaining(context), origin)
        except Refused as refused:
            await _abort(context, refused.refusal)

    async def _slow_down(self, job: str, context: Context) -> None:
        """Let a call wait that is above a rate; refuse the call if it would wait for long."""
        remaining = _find_remaining(context)
        patience = math.inf if remaining is None else remaining
        try:
            wait = self._coordinator.rates.admit(job, context.peer(), patience, time.monotonic())
        except Refused as refused:
            await _abort(context, refused.refusal)
        await asyncio.sleep(wait)

    async def DescribeCoordinator(
        self, request: wire.DescribeCoordinatorRequest, context: Context
    ) -> wire.CoordinatorDescription:
        if problem := explain_mismatch(request, *_SIDES):
            await _abort(context, Refusal(Status.FAILED_PRECONDITION, problem))
        token, status = CALLER.get(), self._coordinator.leadership
        if status is None and not token and not request.with_limits:
            return self._description
        told = wire.CoordinatorDescription(token_id=token)
        if status is not None:
            told.role, told.leader, told.term = status.role, status.leader, status.term
        told.MergeFrom(self._description)
        if not self._access.knows(token):
            told.ClearField("kv_port")
            told.ClearField("kv_addresses")
            told.ClearField("kv_secret")
        elif token:
            told.kv_secret = derive_secret(self._description.kv_secret, token)
        if request.with_limits:
            self._describe_limits(told, token)
            told.wall_time = time.time()
        return told

    def _describe_limits(self, told: wire.CoordinatorDescription, token: str) -> None:
        """Add the limits; which job uses most is for callers who may know of that job."""
        told.resident_bytes = find_resident()
        for one in self._coordinator.describe_limits():
            limit = told.limits.add(name=one.name, most=one.most, used=one.used)
            if one.job and self._access.sees(token, one.job):
                limit.job = one.job

    async def ListJobs(self, request: wire.ListJobsRequest, context: Context) -> wire.ListJobsReply:
        jobs = await self._ask(requests.ListJobs(), context)
        token = CALLER.get()
        seen = (one for one in jobs if self._access.sees(token, one.job))
        return wire.ListJobsReply(jobs=map(messages.encode_job, seen))

    async def DescribeJob(self, request: wire.DescribeJobRequest, context: Context) -> wire.Job:
        asked = requests.DescribeJob(request.job, request.waits_seconds)
        return messages.encode_job(await self._ask(asked, context))

    async def Reform(self, request: wire.GroupChangeRequest, context: Context) -> wire.GroupChange:
        return messages.encode_group_change(
            await self._ask(messages.decode_group_change(request), context)
        )

    async def CollectReports(
        self, request: wire.CollectReportsRequest, context: Context
    ) -> AsyncIterator[wire.CollectReportsReply]:
        asked = requests.CollectReports(request.job, request.operations)
        reports = await self._ask(asked, context)
        # Afterwards: with the answers came news of how late members are.
        job = await self._ask(requests.DescribeJob(request.job, request.waits_seconds), context)
        yield wire.CollectReportsReply(job=messages.encode_job(job))
        for report in reports:
            yield wire.CollectReportsReply(report=messages.encode_member_report(report))

    async def ListEvents(
        self, request: wire.ListEventsRequest, context: Context
    ) -> wire.ListEventsReply:
        # Without an origin: what is read is not kept for those who ask again.
        asked = requests.ListEvents(request.job, request.after, request.waits)
        events = await self._ask_by(asked, _find_remaining(context), context)
        return messages.encode_events(events, self._coordinator.clock_offset)

    async def AwaitVerdict(
        self, request: wire.AwaitVerdictRequest, context: Context
    ) -> wire.Verdict:
        """Never return: a verdict is the end of a call's time, and travels in the trailers."""
        asked = requests.AwaitVerdict(
            job=request.job,
            member_id=request.member_id,
            group=request.group,
            sequence=request.sequence,
            operation=request.operation,
            waiting_on=tuple(request.waiting_on),
        )
        remaining = request.remaining if request.HasField("remaining") else None
        if remaining is None and (whole := context.time_remaining()) is not None:
            remaining = whole - min(_SLACK, whole * _SLACK_PART)
        found = await self._ask_by(asked, remaining, context)
        if isinstance(found, CallCancellation):
            refusal = Refusal(Status.ABORTED, f"{found.by} gave the call up: {found.reason}")
            message = encode_cancellation(request.group, request.sequence, found)
            await _abort(context, refusal, (GIVEN_UP_KEY, message.SerializeToString()))
        await _abort_with_verdict(found, request.max_nbytes, context)

    async def MonitoredBarrier(
        self, request: wire.MonitoredBarrierRequest, context: Context
    ) -> wire.MonitoredBarrierReply:
        asked = requests.MonitoredBarrier(
            request.job, request.member_id, request.group, request.sequence
        )
        found = await self._ask_by(asked, request.remaining, context)
        if found is not None:
            await _abort_with_verdict(found, request.max_nbytes, context)
        return wire.MonitoredBarrierReply()

    async def AbortJob(self, request: wire.AbortJobRequest, context: Context) -> wire.AbortJobReply:
        asked = requests.AbortJob(request.job, request.by, request.reason)
        return wire.AbortJobReply(notified=await self._ask(asked, context))

    async def DeleteJob(
        self, request: wire.DeleteJobRequest, context: Context
    ) -> wire.DeleteJobReply:
        asked = requests.DeleteJob(request.job, request.by, request.force)
        return wire.DeleteJobReply(expelled=await self._ask(asked, context))

    async def OpenPage(self, request: wire.OpenPageRequest, context: Context) -> wire.OpenPageReply:
        if self._make_link is None:
            text = (
                "this coordinator has no page: start it with --http, as in "
                "`allhands serve --http 127.0.0.1:7071`"
            )
            await _abort(context, Refusal(Status.FAILED_PRECONDITION, text))
        if len(request.host) > _LONGEST_HOST or not _HOST.fullmatch(request.host):
            text = f"no name of a host: {quote(request.host)}"
            await _abort(context, Refusal(Status.INVALID_ARGUMENT, text))
        try:
            self._coordinator.check_serving()
        except Refused as refused:
            await _abort(context, refused.refusal)
        if request.job:  # refuses one that is not there
            await self._ask(requests.DescribeJob(request.job), context)
        url, seconds = self._make_link(CALLER.get(), request.job, request.host)
        return wire.OpenPageReply(url=url, seconds=seconds)

    async def CreateToken(
        self, request: wire.CreateTokenRequest, context: Context
    ) -> wire.CreateTokenReply:
        if not 0 <= request.lifetime < _LONGEST_LIFETIME:
            text = f"a token's lifetime is from 0 to {_LONGEST_LIFETIME:g} seconds"
            await _abort(context, Refusal(Status.INVALID_ARGUMENT, text))
        id, secret, at = secrets.token_hex(6), secrets.token_urlsafe(32), time.time()
        token = f"{SCOPED_PREFIX}{id}_{secret}"
        found = split_token(token)
        assert found is not None
        asked = requests.CreateToken(
            *found,
            request.job,
            tuple(request.verbs),
            at + request.lifetime if request.lifetime else 0.0,
            request.max_joins,
            at,
        )
        return wire.CreateTokenReply(token=token, id=await self._ask(asked, context))

    async def ListTokens(
        self, request: wire.ListTokensRequest, context: Context
    ) -> wire.ListTokensReply:
        tokens = await self._ask(requests.ListTokens(), context)
        return wire.ListTokensReply(tokens=map(messages.encode_token, tokens))

    async def RevokeToken(
        self, request: wire.RevokeTokenRequest, context: Context
    ) -> wire.RevokeTokenReply:
        await self._ask(requests.RevokeToken(request.id), context)
        return wire.RevokeTokenReply()

    async def ReportExit(
        self, request: wire.ReportExitRequest, context: Context
    ) -> wire.ReportExitReply:
        asked = requests.ReportExit(
            request.job, request.pid_namespace, request.pid, request.start_ticks, request.status
        )
        return wire.ReportExitReply(known=await self._ask(asked, context))

    async def SaveSnapshot(
        self, request: wire.SaveSnapshotRequest, context: Context
    ) -> AsyncIterator[wire.SaveSnapshotReply]:
        try:
            pieces = await self._coordinator.make_snapshot()
        except Refused as refused:
            await _abort(context, refused.refusal)
        async for data in pieces:
            yield wire.SaveSnapshotReply(data=data)

    async def _ask_by(self, request: Request[R], remaining: float | None, context: Context) -> R:
        """Ask for an answer due at the deadline in the request, not the RPC's."""
        try:
            due = None if remaining is None else max(0.0, remaining)
            return await self._coordinator.ask(request, due)
        except Refused as refused:
            await _abort(context, refused.refusal)


def make_session_handler(service: CoordinatorService) -> grpc.GenericRpcHandler:
    """Make the handler of `Session` that sends what `serve_session` yields as it is."""
    method = wire.DESCRIPTOR.services_by_name["Coordinator"].methods_by_name["Session"]
    handler: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
        service.serve_session, wire.SessionRequest.FromString, None
    )
    return grpc.method_handlers_generic_handler(
        method.containing_service.full_name, {method.name: handler}
    )


def _make_method(call: KvCall) -> Callable[[CoordinatorService, Message, Context], Any]:
    """Make the gRPC method of a key-value verb."""

    async def serve(self: CoordinatorService, request: Message, context: Context) -> Message:
        try:
            asked = call.parse(request)
        except Refused as refused:
            await _abort(context, refused.refusal)
        if self._coordinator.rates.is_limited and call.verb.name not in NOT_SLOWED:
            await self._slow_down(getattr(request, "job", ""), context)
        answer = await self._ask(asked, context)
        reply: Message = call.verb.reply()
        call.fill(reply, answer)
        return reply

    return serve


# A type checker misses these methods where it sees the class used.
for _call in KV_CALLS.values():
    setattr(CoordinatorService, _call.verb.method, _make_method(_call))


def _find_remaining(context: Context) -> float | None:
    """Return the seconds until the caller's own deadline; None: there is none."""
    if (remaining := context.time_remaining()) is not None:
        remaining = max(remaining - find_grace(context.invocation_metadata()), 0.0)
    return remaining


def _drop_silent(serving: "asyncio.Task[None] | None", stream: SessionStream, job: str) -> None:
    """End the stream of a member that takes nothing in: its session breaks, and may be resumed."""
    logger.warning(
        "dropped the session of %s in job %s: %d notifications are unread",
        *(stream.peer, job, MOST_UNREAD),
    )
    assert serving is not None, "sessions are served by tasks"
    serving.cancel()


def _get_worker_address(join: wire.Join, context: Context) -> str:
    """Return the worker's `host:port` for peers to dial."""
    if not join.advertise:
        return format_worker_address(context.peer(), join.port)
    try:
        return format_authority(str(ipaddress.ip_address(join.advertise)), join.port)
    except ValueError as error:
        text = f"not an IP address to advertise: {quote(join.advertise)}"
        raise Refused(Status.INVALID_ARGUMENT, text) from error


async def _abort_with_verdict(verdict: Verdict, largest: int, context: Context) -> NoReturn:
    most = min(largest or _USUAL_VERDICT, _LARGEST_VERDICT)
    refusal = Refusal(Status.DEADLINE_EXCEEDED, verdict.text)
    await _abort(context, refusal, (VERDICT_KEY, encode_bounded_verdict(verdict, most)))


async def _abort(
    context: Context, refusal: Refusal, *trailers: tuple[str, str | bytes]
) -> NoReturn:
    code = grpc.StatusCode[refusal.status.value]
    if refusal.leader is not None:
        trailers = (*trailers, (LEADER_KEY, refusal.leader))
    if refusal.retry_after is not None:
        trailers = (*trailers, (RETRY_KEY, f"{refusal.retry_after:.3f}"))
    await context.abort(code, bound_text(refusal), trailers)


def encode_bounded_verdict(verdict: Verdict, most: int = _USUAL_VERDICT) -> bytes:
    """Serialise a verdict into at most `most` bytes, for a trailer.

    Stacks go first. Where very many ranks are absent they are named without details, and at worst
    not all.
    """
    message = encode_verdict(verdict)
    surplus = message.ByteSize() - most
    for one in reversed([one for one in message.absent if one.stack]):
        if surplus > 0:
            surplus -= len(one.stack.encode())
            one.ClearField("stack")
    if message.ByteSize() > most:
        brief = (AbsentRank(one.rank, one.state, "") for one in verdict.absent)
        message = encode_verdict(replace(verdict, absent=tuple(brief)))
    if message.ByteSize() > most:
        del message.absent[len(message.absent) * most // message.ByteSize() :]
    return message.SerializeToString()
