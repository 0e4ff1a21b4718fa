"""A synchronous client of the coordinator: keys, queues, barriers, jobs."""

import contextlib
import os
import time
import weakref
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self, TypeVar, cast

import grpc

from allhands.coordinator.analysis import diagnose
from allhands.coordinator.attempts import RETRY_SECONDS
from allhands.coordinator.blocking_channel import open_channel
from allhands.coordinator.blocking_versions import check_grpc_description, is_version_refused
from allhands.coordinator.diagnosis import Diagnosis
from allhands.coordinator.endpoint import (
    ChannelConfig,
    Endpoint,
    configure_channel,
    find_coordinator,
)
from allhands.coordinator.event_calls import EventCalls
from allhands.coordinator.job_codec import read_job
from allhands.coordinator.job_reports import JobReports, read_reports
from allhands.coordinator.kv.blocking import KvConnectionPool
from allhands.coordinator.kv.calls import (
    KvCallError,
    KvPort,
    describe_call,
    is_past_deadline,
    may_come_back,
    read_kv_port,
    repeat_slowed,
)
from allhands.coordinator.kv.cancelling import CallCanceller
from allhands.coordinator.kv.request_numbers import RequestNumbers
from allhands.coordinator.limit_calls import LimitCalls
from allhands.coordinator.page_calls import PageCalls
from allhands.coordinator.probing import explain_failure
from allhands.coordinator.protocol_versions import make_describe_request
from allhands.coordinator.status import JobStatus, MemberStatus
from allhands.coordinator.status_errors import translate_error, translate_status
from allhands.coordinator.synchronizing import SynchronizingClient
from allhands.coordinator.token_calls import TokenCalls
from allhands.deadlines import Timeout, clip_or_raise, to_seconds
from allhands.errors import CoordinatorUnavailable
from allhands.tracebacks import trims_tracebacks
from allhands_proto import forks
from allhands_proto.call_metadata import add_call_metadata
from allhands_proto.kv_verbs import P, Q, find_verb
from allhands_proto.v1 import coordinator_pb2 as wire
from allhands_proto.v1 import coordinator_pb2_grpc

T = TypeVar("T")
_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")

DIAGNOSED_OPERATIONS = 32
"""Of each group: what runs, and some before."""
DIAGNOSED_SECONDS = 600.0
"""Over which `diagnose` says who was late."""


def connect(
    url: str | None = None,
    *,
    job: str | None = None,
    token: str | None = None,
    timeout: float = 30.0,
    insecure: bool = False,
) -> "Control":
    """Return a client of the coordinator at `ah://host:port/job`, connected on first use.

    Args:
        url: None: ALLHANDS_URL, else this user's coordinator on this host.
        job: job of the keys and barriers; None: the URL's.
        token: None: ALLHANDS_TOKEN, else the token in this user's notice of the coordinator.
        timeout: deadline in seconds of calls without a timeout of their own.
        insecure: allow plaintext beyond loopback, like ALLHANDS_INSECURE=1; else TLS is required
            there (ALLHANDS_TLS_CA).

    Raises:
        ValueError: the URL is malformed, several coordinators could be meant, or others could read
            the token on its way.
        CoordinatorUnavailable: no URL was given, and this user has no coordinator here.
    """
    # An entry point like a command: this is where the process's environment becomes values.
    endpoint = find_coordinator(url, os.environ, token=token, insecure=insecure)
    return Control(endpoint, job=job or endpoint.address.job, timeout=timeout)


@trims_tracebacks
class Control(SynchronizingClient, TokenCalls, LimitCalls, EventCalls, PageCalls):
    """A client of the coordinator; safe from any thread.

    Key-value calls go over a pool of TCP connections to the coordinator's key-value port; if there
    is no reachable port, or `use_lines` is false, they go over gRPC, as all other calls do. Both
    mean the same.

    Keys and barriers belong to `job`. Every call has a deadline in seconds: its `timeout`, else
    this client's. Values are bytes; a str is encoded as UTF-8.

    Every method may raise:
        ValueError: the coordinator rejects an argument as invalid, or the call needs a job and none
            was named; nothing was changed.
        CoordinatorUnavailable: no connection, or the connection broke; a change may or may not have
            happened. A coordinator with a log is waited for: then it was away until the deadline.
        Unauthenticated, PermissionDenied: the token is missing or not accepted; nothing was
            changed.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        job: str | None,
        timeout: Timeout = 30.0,
        use_lines: bool = True,
    ) -> None:
        super().__init__()
        self.endpoint = endpoint
        """The coordinator, and what it takes to be let in."""
        self._parent_connections: list[object] = []
        """Connections of the processes that this one was forked from, which are not to be freed."""
        self._is_closed = False
        self._connect()
        self._job = job
        self._timeout = to_seconds(timeout)
        find_port = partial(_find_port_of, weakref.ref(self))
        self._numbers = RequestNumbers()
        self._is_durable: bool | None = None
        """Whether the coordinator has its state again after a restart; None: not asked yet."""
        self._kv_pool = KvConnectionPool(
            self._channel_config.endpoint, find_port if use_lines else lambda _: None
        )
        forks.hold(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; waiting and later calls raise CoordinatorUnavailable. Idempotent.

        What is held of locks, semaphores and elections is free again.
        """
        self._driver.close()
        self._is_closed = True
        self._stop_leases()
        self._kv_pool.close()
        if not forks.is_inherited(self._generation):
            self._channel.close()

    def forked(self) -> None:
        """Leave the connection to the parent; a forked child connects with its next call."""
        self._parent_connections += (
            self._channel_config,
            self._channel,
            self._stub,
            self._describe_coordinator,
        )

    @property
    def job_name(self) -> str | None:
        """Job of this client's keys and barriers, if named."""
        return self._job

    @property
    def default_timeout(self) -> float:
        """Deadline in seconds of calls without a timeout of their own."""
        return self._timeout

    def jobs(self, *, timeout: Timeout | None = None) -> tuple[JobStatus, ...]:
        """Return every job at the coordinator, sorted by name."""
        reply = self._call(self._calls.ListJobs, wire.ListJobsRequest(), "list jobs", timeout)
        return tuple(sorted(map(read_job, reply.jobs), key=lambda job: job.job))

    def job(self, name: str | None = None, *, timeout: Timeout | None = None) -> JobStatus:
        """Return the status of a job, by default this client's own.

        Raises:
            NotFound: the coordinator knows no such job.
        """
        request = wire.DescribeJobRequest(job=name or self._require_job())
        doing = f"describe job {request.job!r}"
        return read_job(self._call(self._calls.DescribeJob, request, doing, timeout))

    def members(self, *, timeout: Timeout | None = None) -> tuple[MemberStatus, ...]:
        """Return the members of the job, by rank.

        Raises:
            NotFound: the coordinator knows no such job.
        """
        return self.job(timeout=timeout).members

    def reports(
        self,
        name: str | None = None,
        operations: int = DIAGNOSED_OPERATIONS,
        *,
        waits_seconds: float = DIAGNOSED_SECONDS,
        timeout: Timeout | None = None,
    ) -> JobReports:
        """Return the reports of a job's ranks, with `operations` of each group.

        With them come the ranks' waits for each other in the last `waits_seconds`.

        Ranks that do not answer within 2 s are in `missing`. A report is at most 1 MiB, less in
        jobs of very many ranks.

        Raises:
            NotFound: the coordinator knows no such job.
        """
        request = wire.CollectReportsRequest(
            job=name or self._require_job(), operations=operations, waits_seconds=waits_seconds
        )
        limit = self._timeout if timeout is None else to_seconds(timeout)
        doing = f"collect the reports of job {request.job!r}"
        try:
            return read_reports(
                self._calls.CollectReports(
                    request, timeout=limit, metadata=self._channel_config.metadata
                ),
                operations,
            )
        except ValueError as error:
            self._explain_closed(error, doing)
            raise
        except grpc.RpcError as error:
            raise self._translate(error, doing) from error

    def diagnose(self, name: str | None = None, *, timeout: Timeout | None = None) -> Diagnosis:
        """Collect the ranks' positions, and return a diagnosis of waiting and late ranks.

        Of a job that has ended: the first failure, and the position of each rank then.

        Raises:
            NotFound: the coordinator knows no such job.
        """
        found = self.reports(name, timeout=timeout)
        return diagnose(found.job, found.reports, found.missing, found.waits)

    def abort(
        self, reason: str, *, by: str, job: str | None = None, timeout: Timeout | None = None
    ) -> int:
        """Abort a job on all members, as `ah.abort` does; return the number notified.

        `by` names the caller, for people.

        Raises:
            NotFound: the coordinator knows no such job.
            Refused: the job has no members.
        """
        request = wire.AbortJobRequest(job=job or self._require_job(), by=by, reason=reason)
        doing = f"abort job {request.job!r}"
        return self._call(self._calls.AbortJob, request, doing, timeout, is_write=True).notified

    def delete_job(
        self,
        name: str | None = None,
        *,
        force: bool = False,
        by: str = "",
        timeout: Timeout | None = None,
    ) -> int:
        """Delete a job: keys, queues, and the record of its worlds.

        A job with members is deleted only with `force`: the members are expelled, and their calls
        raise MembershipChanged. Returns the number expelled. `by` names the caller, for people.

        Raises:
            NotFound: the coordinator knows no such job.
            Refused: the job has members, without `force`; nothing was deleted.
        """
        request = wire.DeleteJobRequest(
            job=name or self._require_job(), by=by or f"process {os.getpid()}", force=force
        )
        doing = f"delete job {request.job!r}"
        return self._call(self._calls.DeleteJob, request, doing, timeout, is_write=True).expelled

    def report_exit(
        self, space: str, pid: int, born: str, status: int, *, timeout: Timeout | None = None
    ) -> bool:
        """Report the exit of a process of the job; return whether it was a member.

        `space` and `born` are of `process` and `notice`; status -n: ended by signal n.

        Raises:
            NotFound: the coordinator knows no such job.
        """
        request = wire.ReportExitRequest(
            job=self._require_job(), pid_namespace=space, pid=pid, start_ticks=born, status=status
        )
        doing = self._append_job(f"report the end of process {pid}")
        return self._call(self._calls.ReportExit, request, doing, timeout, is_write=True).known

    def _connect(self) -> None:
        """Make this process's channel, which connects with its first call."""
        self._generation = forks.generation
        self._channel_config: ChannelConfig = configure_channel(self.endpoint)
        self._channel = open_channel(self._channel_config)
        self._stub = coordinator_pb2_grpc.CoordinatorStub(self._channel)
        self._describe_coordinator = self._stub.DescribeCoordinator
        if self._is_closed:
            self._channel.close()

    @property
    def _calls(self) -> coordinator_pb2_grpc.CoordinatorStub:
        """The calls of the coordinator."""
        self._reconnect_if_forked()
        return self._stub

    def _reconnect_if_forked(self) -> None:
        """Connect anew in a forked child."""
        if forks.is_inherited(self._generation):
            self._connect()

    def _find_port(self, limit: float) -> KvPort | None:
        return read_kv_port(self._describe(limit))

    def _describe(self, limit: float) -> wire.CoordinatorDescription:
        """Ask the coordinator what it is.

        Raises:
            grpc.RpcError: it cannot be asked.
        """
        self._reconnect_if_forked()
        deadline = time.monotonic() + limit

        def describe() -> wire.CoordinatorDescription:
            remaining = max(deadline - time.monotonic(), 0.0)
            metadata = self._channel_config.metadata
            request = make_describe_request()
            told = self._describe_coordinator(request, timeout=remaining, metadata=metadata)
            return check_grpc_description(told)

        try:
            try:
                found = describe()
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                # The connection that broke may be to a coordinator in the place of which there
                # is another one by now. Where there is none, this fails at once.
                found = describe()
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            found = wire.CoordinatorDescription()  # an older one
        self._is_durable = found.is_durable
        return found

    def _require_job(self) -> str:
        if not self._job:
            raise ValueError(
                f"no job named: write ah://{self._channel_config.target}/JOB, or pass job="
            )
        return self._job

    def _call_kv(
        self,
        request: Q,
        reply_type: type[P],
        timeout: Timeout | None,
        canceller: CallCanceller | None = None,
    ) -> P:
        verb = find_verb(request, reply_type)
        limit = self._timeout if timeout is None else to_seconds(timeout)
        limit = clip_or_raise(lambda: self._append_job(describe_call(verb, request)), limit)
        deadline = time.monotonic() + limit

        def attempt(origin: wire.Origin | None) -> P:
            reply = self._kv_pool.call(verb, request, deadline, canceller, origin)
            if reply is None:
                method = getattr(self._calls, verb.method)
                longest = deadline - time.monotonic() + verb.grace_seconds
                metadata = add_call_metadata(
                    self._channel_config.metadata, origin, verb.grace_seconds
                )
                if canceller is None:
                    return cast(P, method(request, timeout=longest, metadata=metadata))
                call = method.future(request, timeout=longest, metadata=metadata)
                with canceller.hold(call.cancel):
                    return cast(P, call.result())
            return reply

        try:
            return self._repeat(
                attempt,
                deadline,
                is_write=verb.is_write,
                is_wait=verb.is_wait,
                canceller=canceller,
            )
        except KvCallError as error:
            doing = self._append_job(describe_call(verb, request))
            raise translate_status(
                *(error.code, error.details, doing),
                target=self._channel_config.target,
                retry_after=error.retry_after,
            ) from error
        except ValueError as error:
            self._explain_closed(error, self._append_job(describe_call(verb, request)))
            raise
        except grpc.FutureCancelledError as error:
            raise CoordinatorUnavailable("the call was cancelled") from error
        except grpc.RpcError as error:
            doing = self._append_job(describe_call(verb, request))
            raise self._translate(error, doing) from error

    def _append_job(self, action: str) -> str:
        return f"{action} of job {self._job!r}"

    def _call(
        self,
        method: "grpc.UnaryUnaryMultiCallable[_Request, _Reply]",
        request: _Request,
        action: str,
        timeout: Timeout | None,
        *,
        is_write: bool = False,
        repeats: bool = True,
    ) -> _Reply:
        limit = self._timeout if timeout is None else to_seconds(timeout)
        limit = clip_or_raise(lambda: action, limit)
        deadline = time.monotonic() + limit

        def attempt(origin: wire.Origin | None) -> _Reply:
            remaining = max(deadline - time.monotonic(), 0.0)
            metadata = add_call_metadata(self._channel_config.metadata, origin)
            return method(request, timeout=remaining, metadata=metadata)

        try:
            if not repeats:
                return attempt(None)
            return self._repeat(attempt, deadline, is_write=is_write)
        except ValueError as error:
            self._explain_closed(error, action)
            raise
        except grpc.RpcError as error:
            raise self._translate(error, action) from error

    def _repeat(
        self,
        attempt: Callable[[wire.Origin | None], T],
        deadline: float,
        *,
        is_write: bool,
        is_wait: bool = False,
        canceller: CallCanceller | None = None,
    ) -> T:
        """Make an attempt, and further ones while a durable coordinator is being restarted.

        Raises:
            KvCallError, grpc.RpcError: the last one failed; or one before, as the coordinator was
                away, and the last got no answer in the time that was left (`is_wait`: the answer
                may be that what is waited for has not come).
        """

        def is_over() -> bool:
            return self._is_closed or (canceller is not None and canceller.is_cancelled)

        attempt = partial(repeat_slowed, attempt, deadline, is_over)
        if not self._knows_durable(deadline):
            return attempt(None)
        absence: KvCallError | grpc.RpcError | None = None
        with self._numbers.open() if is_write else contextlib.nullcontext() as origin:
            while True:
                try:
                    return attempt(origin)
                except (KvCallError, grpc.RpcError) as error:
                    if absence is not None and not is_wait and is_past_deadline(error):
                        raise absence from error
                    if not may_come_back(error) or is_over():
                        raise
                    if time.monotonic() + RETRY_SECONDS > deadline:
                        raise
                    absence = error
                if origin is not None:
                    origin.is_repeated = True
                time.sleep(RETRY_SECONDS)  # there is no event for "somebody listens"
                self._kv_pool.note_restart()

    def _knows_durable(self, deadline: float) -> bool:
        """Whether the coordinator is known to have its state again after a restart."""
        if self._is_durable is None:
            # The call itself will say what is wrong: no answer, or a channel that is closed.
            try:
                self._describe(max(deadline - time.monotonic(), 0.0))
            except (grpc.RpcError, ValueError) as error:
                if is_version_refused(error):
                    raise
        return bool(self._is_durable)

    def _explain_closed(self, error: ValueError, action: str) -> None:
        """Raise CoordinatorUnavailable for gRPC's error of a channel closed meanwhile, if it is."""
        if self._is_closed:
            raise CoordinatorUnavailable(f"this client has been closed ({action})") from error

    def _translate(self, error: grpc.RpcError, action: str) -> Exception:
        endpoint, has_answered = self._channel_config.endpoint, self._is_durable is not None
        reason = explain_failure(error.code(), endpoint, has_answered=has_answered)
        return translate_error(error, action, target=self._channel_config.target, reason=reason)


def _find_port_of(client: "weakref.ref[Control]", limit: float) -> KvPort | None:
    control = client()
    assert control is not None, "it is what calls"
    return control._find_port(limit)
