"""The coordinator as a pure machine: events and the time in, effects out.

Laws:
  1. The machine does no I/O, reads no clock and draws no random number.
  2. Events have one order, and their times never decrease.
  3. An event is handled before the timers due at its time: a late sign of life still counts.
  4. Every ticket is answered or refused exactly once, unless cancelled before.
  5. Nothing is pushed to a session after its EndSession or SessionBroken.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, get_args

from allhands_server.machine.changes import (
    Change,
    ClientsForgotten,
    CommitRecorder,
    Completed,
    NoRecorder,
)
from allhands_server.machine.completions import Completions
from allhands_server.machine.effects import (
    Answer,
    Changed,
    Drained,
    Effect,
    EndSession,
    JobEnded,
    Refuse,
)
from allhands_server.machine.events import (
    AuthenticationFailed,
    CommitDurable,
    CommitsRefused,
    ConnectionAcknowledged,
    Drain,
    Event,
    Origin,
    ProcessInspected,
    RequestCancelled,
    RequestReceived,
    SessionBroken,
    SessionMessage,
    SessionOpened,
    SessionResumed,
    Tick,
)
from allhands_server.machine.evidence import on_acknowledged, on_process_inspected
from allhands_server.machine.formatting import escape, quote
from allhands_server.machine.job_views import describe_job, observe_job
from allhands_server.machine.jobs import Job, Jobs, Signals
from allhands_server.machine.limit_use import LimitUse, list_limit_use
from allhands_server.machine.measurements import Measurements, measure_jobs
from allhands_server.machine.operator_requests import abort_job, delete_job, refuse_shutting_down
from allhands_server.machine.refusals import Refusal, Refused, Status
from allhands_server.machine.requests import (
    AbortJob,
    AwaitVerdict,
    Barrier,
    CancelBarrier,
    ChangeGroup,
    CollectReports,
    DeleteJob,
    DescribeJob,
    ListBarriers,
    ListEvents,
    ListJobs,
    MonitoredBarrier,
    ReportExit,
    Request,
)
from allhands_server.machine.sessions import Sessions, refuse_without_world
from allhands_server.machine.store.keys import KeyRequest
from allhands_server.machine.store.leases import LeaseRequest
from allhands_server.machine.store.queues import QueueRequest
from allhands_server.machine.store.watches import Watch
from allhands_server.machine.timers import TimerQueue
from allhands_server.machine.tokens import ALL_JOBS, TokenChange, TokenRequest, Tokens
from allhands_server.machine.values import JobObservation
from allhands_server.machine.waiting import WaitingRequests
from allhands_server.machine.world import report_collection
from allhands_server.resource_limits import DEFAULT_LIMITS, ResourceLimits

_CONCLUSIONS = (Answer, Refuse)
_GOING_DOWN = Refusal(Status.UNAVAILABLE, "the coordinator is going down and takes in nobody")


class Machine:
    """All state and rules of the coordinator; a shell feeds events and carries out effects."""

    def __init__(
        self,
        pid_namespace: str = "",
        has_log: bool = False,
        limits: ResourceLimits = DEFAULT_LIMITS,
    ) -> None:
        """Make an empty machine; the shell can inspect processes in `pid_namespace`.

        With a log, `handle` returns a `Changed` where the durable state has changed.
        """
        self._timers = TimerQueue()
        self._recorder = CommitRecorder() if has_log else None
        self._jobs = Jobs(self._timers, self._recorder or NoRecorder(), pid_namespace, limits)
        self.tokens = Tokens(self._recorder or NoRecorder(), self._has_member)
        self._waiting = WaitingRequests(self._timers)
        self._request_counts: Counter[type[Request[Any]]] = Counter()
        memory = self._jobs.signals.memory
        self._completions = Completions(self._recorder or NoRecorder(), memory.completions_most)
        self._origins: dict[int, Origin] = {}  # by ticket
        self._open_tickets: dict[tuple[bytes, int], int] = {}  # by client and number
        self._touched: dict[Job, None] = {}
        self._sessions = Sessions(self._jobs, self.tokens, self._touched)
        self._draining: Refusal | None = None
        """Refusal of new members while draining."""

    @property
    def next_due(self) -> float | None:
        """Latest time of the next event, at least a Tick; None: no need."""
        return self._timers.next_due

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Handle one event, then everything due by `now`."""
        self._timers.now = now
        effects = self._dispatch(event, now)
        self._forget_ended(effects)  # first: what is answered by now is not due any more
        overdue = self._timers.run_due(now)
        signals = self._jobs.signals
        if signals.woken or signals.touched or signals.told:
            overdue += self._heed(signals)
        if overdue or self._touched:
            self._forget_ended(overdue)
            effects += overdue
        if self._draining is not None and not any(job.is_live for job in self._jobs):
            effects.append(Drained())
        if self._recorder is not None and (changes := self._recorder.take_commit()):
            effects.insert(0, Changed(changes))
        return effects

    def _heed(self, signals: Signals) -> list[Effect]:
        """Answer the watches with new events, and look at the jobs that may be unused."""
        effects = [effect for watches in signals.woken for effect in watches.answer_new()]
        signals.woken.clear()
        effects += [effect for events in signals.told for effect in events.answer_waiting()]
        signals.told.clear()
        self._touched.update(signals.touched)
        signals.touched.clear()
        return effects

    def describe_limits(self) -> list[LimitUse]:
        """Return all limits, with how much is used of each."""
        return list_limit_use(self._jobs, self._completions.nbytes)

    def measure(self, now: float) -> Measurements:
        """Return numbers of the state at this moment, and counts since the beginning."""
        return measure_jobs(
            self._jobs,
            now,
            sessions=len(self._sessions),
            tokens=len(self.tokens),
            answers_nbytes=self._completions.nbytes,
            requests={kind.__name__: count for kind, count in self._request_counts.items()},
        )

    def observe(self, job: str, after: int, now: float) -> JobObservation | None:
        """Return a job at this moment, with its events behind a number; None: there is none."""
        found = self._jobs.find(job)
        return None if found is None else observe_job(found, after, now)

    # ------------------------------------------------------------ the log

    def restore(self, changes: Iterable[Change], now: float = 0.0) -> None:
        """Make the changes of a log, before any event; at their end `finish_restore`.

        What they say has happened counts as happening `now`.
        """
        self._timers.now = now
        for change in changes:
            if isinstance(change, TokenChange):
                self.tokens.apply(change)
            elif isinstance(change, Completed | ClientsForgotten):
                self._completions.apply(change)
            else:
                self._jobs.apply(change)

    def finish_restore(
        self, now: float, lease_seconds: Mapping[tuple[str, int], float] | None = None
    ) -> None:
        """Begin the time of leases and of members, and drop jobs, after a log's last change.

        Args:
            lease_seconds: left of leases, by job and number; the others have all of their time.
        """
        self._timers.now = now
        for job in list(self._jobs):
            job.finish_restore(now, lease_seconds or {})
            self._jobs.drop_unused(job)

    def list_changes(self) -> Iterator[Change]:
        """Return changes by which an empty machine gets the durable state of now.

        What becomes of this machine meanwhile does not alter them.
        """
        return itertools.chain(
            self._jobs.list_changes(), self.tokens.list_changes(), self._completions.list_changes()
        )

    def _undo_commits(self, now: float) -> list[Effect]:
        """Take back the changes that the log has not taken in."""
        assert self._recorder is not None
        self._recorder.undo_all()
        effects = [effect for job in self._jobs for effect in job.answer_present(now)]
        self._touched.update(dict.fromkeys(self._jobs))
        return effects

    def _note_commit(self) -> list[Effect]:
        assert self._recorder is not None
        self._recorder.on_durable()
        return []

    # ------------------------------------------------------------ events

    def _dispatch(self, event: Event, now: float) -> list[Effect]:
        if isinstance(event, RequestReceived):  # first: of these there are most by far
            try:
                if event.origin is not None and event.request.keeps_answer:
                    return self._handle_once(event, event.origin, now)
                return self._handle_request(event.ticket, event.request, event.due, now)
            except Refused as refused:
                return [Refuse(event.ticket, refused.refusal)]
        match event:
            case RequestCancelled(ticket):
                self._forget_origin(ticket)
                if (job := self._waiting.cancel(ticket)) is not None:
                    self._touched[job] = None
                return []
            case SessionOpened():
                return self._sessions.open(event, self._draining, now)
            case SessionResumed():
                return self._sessions.resume(event, now)
            case SessionMessage():
                return self._sessions.take_message(event, now)
            case SessionBroken(session):
                return self._sessions.on_broken(session, now)
            case AuthenticationFailed(address, why):
                return self._sessions.on_authentication_failed(address, why, now)
            case ProcessInspected():
                return on_process_inspected(self._jobs, event, now, self._touched)
            case ConnectionAcknowledged():
                on_acknowledged(self._jobs, event, now)
                return []
            case Drain(reason):
                return self._drain(reason)
            case CommitDurable():
                return self._note_commit()
            case CommitsRefused():
                return self._undo_commits(now)
            case Tick():
                return []

    def _forget_ended(self, effects: list[Effect]) -> None:
        """Forget concluded tickets, ended sessions and unused jobs."""
        for effect in effects:
            if isinstance(effect, _CONCLUSIONS):
                if self._origins:
                    self._note_completion(effect)
                if self._waiting and (job := self._waiting.forget(effect.ticket)) is not None:
                    self._touched[job] = None
            elif isinstance(effect, EndSession):
                self._sessions.forget(effect.session)
            elif isinstance(effect, JobEnded):
                self._touched[self._jobs.get(effect.job)] = None
        # A job to which a refused change may come back is kept until the log has it.
        if self._touched and (self._recorder is None or self._recorder.is_settled):
            for job in self._touched:
                self._jobs.drop_unused(job)
            self._touched.clear()

    # ------------------------------------------------------------ requests

    def _handle_once(self, event: RequestReceived, origin: Origin, now: float) -> list[Effect]:
        """Handle a request that may have been asked before."""
        if (found := self._completions.find(origin)) is not None:
            return [Answer(event.ticket, found[0])]
        effects: list[Effect] = []
        key = origin.client, origin.number
        if (earlier := self._open_tickets.get(key)) is not None:
            self._forget_origin(earlier)
            self._waiting.cancel(earlier)
            text = "the client asks again on another connection"
            effects.append(Refuse(earlier, Refusal(Status.ABORTED, text)))
        self._origins[event.ticket] = origin
        self._open_tickets[key] = event.ticket
        try:
            handled = self._handle_request(event.ticket, event.request, event.due, now)
        except Refused as refused:
            handled = [Refuse(event.ticket, refused.refusal)]
        return [*effects, *handled]

    def _note_completion(self, effect: Answer | Refuse) -> None:
        """Keep the answer of a request that may be asked again."""
        origin = self._forget_origin(effect.ticket)
        if origin is not None and isinstance(effect, Answer):
            self._completions.add(origin, effect.reply)

    def _forget_origin(self, ticket: int) -> Origin | None:
        """Return where a request came from that is under way no more."""
        if (origin := self._origins.pop(ticket, None)) is not None:
            del self._open_tickets[origin.client, origin.number]
        return origin

    def _handle_request(
        self, ticket: int, request: Request[Any], due: float | None, now: float
    ) -> list[Effect]:
        kind = type(request)
        self._request_counts[kind] += 1
        return _HANDLERS[kind](self, ticket, request, due, now)

    def _list_jobs(
        self, ticket: int, request: ListJobs, due: float | None, now: float
    ) -> list[Effect]:
        views = (describe_job(job, now) for job in self._jobs)
        return [Answer(ticket, tuple(sorted(views, key=lambda view: view.job)))]

    def _describe_job(
        self, ticket: int, request: DescribeJob, due: float | None, now: float
    ) -> list[Effect]:
        found = describe_job(self._jobs.get(request.job), now, request.waits_seconds)
        return [Answer(ticket, found)]

    def _await_verdict(
        self,
        ticket: int,
        request: AwaitVerdict | MonitoredBarrier,
        due: float | None,
        now: float,
    ) -> list[Effect]:
        job = self._jobs.get(request.job)
        if job.verdicts is None:
            raise refuse_without_world(job)
        effects = job.verdicts.submit(ticket, request, now, due)
        if not any(isinstance(one, Answer) and one.ticket == ticket for one in effects):
            self._waiting.add(ticket, job, job.verdicts, None)  # verdicts have timers of their own
        return effects

    def _abort_job(
        self, ticket: int, request: AbortJob, due: float | None, now: float
    ) -> list[Effect]:
        job = self._jobs.get(request.job)
        effects = abort_job(job, ticket, request, now)
        self._touched[job] = None
        return effects

    def _delete_job(
        self, ticket: int, request: DeleteJob, due: float | None, now: float
    ) -> list[Effect]:
        job = self._jobs.get(request.job)
        effects = delete_job(job, ticket, request, now)
        self._touched[job] = None
        return effects

    def _report_exit(
        self, ticket: int, request: ReportExit, due: float | None, now: float
    ) -> list[Effect]:
        job = self._jobs.get(request.job)
        if job.world is None:
            return [Answer(ticket, False)]
        is_known, effects = job.world.process_evidence.on_exit(request, now)
        return [Answer(ticket, is_known), *effects, *job.review_verdicts(now)]

    def _change_group(
        self, ticket: int, request: ChangeGroup, due: float | None, now: float
    ) -> list[Effect]:
        job = self._jobs.get(request.job)
        if job.group_changes is None:
            raise refuse_without_world(job)
        effects = job.group_changes.submit(ticket, request, now)
        if not effects:
            self._waiting.add(ticket, job, job.group_changes, due)
        return effects

    def _collect_reports(
        self, ticket: int, request: CollectReports, due: float | None, now: float
    ) -> list[Effect]:
        job = self._jobs.get(request.job)
        if job.world is None:
            raise refuse_without_world(job)
        reports = job.world.reports
        effects = reports.submit(ticket, request)
        if not isinstance(effects[0], Answer):
            latest = now + report_collection.COLLECT_SECONDS
            self._waiting.add(ticket, job, reports, latest if due is None else min(due, latest))
        return effects

    def _arrive_at_barrier(
        self, ticket: int, request: Barrier, due: float | None, now: float
    ) -> list[Effect]:
        job = self._jobs.open(request.job)
        self._touched[job] = None
        effects = job.barriers.submit(ticket, request)
        if not effects:
            self._waiting.add_limited(ticket, job, job.barriers, due, request)
        return effects

    def _cancel_barrier(
        self, ticket: int, request: CancelBarrier, due: float | None, now: float
    ) -> list[Effect]:
        job = self._jobs.get(request.job)
        released = job.barriers.cancel_barrier(request)
        text = f"barrier {quote(request.name)} was cancelled: {escape(request.reason)}"
        job.events.add("cancelled", text, now, by=escape(request.by))
        self._touched[job] = None
        return [*released, Answer(ticket, len(released))]

    def _list_barriers(
        self, ticket: int, request: ListBarriers, due: float | None, now: float
    ) -> list[Effect]:
        return [Answer(ticket, self._jobs.get(request.job).barriers.describe())]

    def _list_events(
        self, ticket: int, request: ListEvents, due: float | None, now: float
    ) -> list[Effect]:
        job = self._jobs.get(request.job)
        effects = job.events.submit(ticket, request)
        if not effects:
            self._waiting.add_limited(ticket, job, job.events, due, request)
        return effects

    def _use_queue(
        self, ticket: int, request: QueueRequest, due: float | None, now: float
    ) -> list[Effect]:
        job = self._jobs.open(request.job)
        self._touched[job] = None
        effects = job.queues.submit(ticket, request)
        if not effects:
            self._waiting.add_limited(ticket, job, job.queues, due, request)
        return effects

    def _use_keys(
        self, ticket: int, request: KeyRequest, due: float | None, now: float
    ) -> list[Effect]:
        job = self._jobs.open(request.job)
        if not job.is_live:
            self._touched[job] = None
        effects = job.keys.submit(ticket, request)
        if not effects:
            self._waiting.add_limited(ticket, job, job.keys, due, request)
        return effects

    def _use_leases(
        self, ticket: int, request: LeaseRequest, due: float | None, now: float
    ) -> list[Effect]:
        job = self._jobs.open(request.job)
        self._touched[job] = None
        return job.leases.submit(ticket, request, now)

    def _watch(self, ticket: int, request: Watch, due: float | None, now: float) -> list[Effect]:
        job = self._jobs.open(request.job)
        self._touched[job] = None
        effects = job.watches.submit(ticket, request, now)
        if not effects:
            self._waiting.add_limited(ticket, job, job.watches, due, request)
        return effects

    def _has_member(self, name: str, member_id: str) -> bool:
        jobs = self._jobs if name == ALL_JOBS else (one for one in self._jobs if one.name == name)
        return any(job.has_member(member_id) for job in jobs)

    def _drain(self, reason: str) -> list[Effect]:
        self._draining = refuse_shutting_down(reason) if reason else _GOING_DOWN
        effects: list[Effect] = []
        for job in self._jobs:
            if job.world is not None and job.state == "forming":
                effects += job.world.dismiss(_GOING_DOWN)
        if reason:
            dismissed = {effect.session for effect in effects if isinstance(effect, EndSession)}
            effects += self._sessions.announce_drain(reason, dismissed)
        return effects


_HANDLERS: dict[type, Callable[[Machine, int, Any, float | None, float], list[Effect]]] = {
    **dict.fromkeys(get_args(KeyRequest), Machine._use_keys),
    **dict.fromkeys(get_args(QueueRequest), Machine._use_queue),
    **dict.fromkeys(get_args(LeaseRequest), Machine._use_leases),
    Watch: Machine._watch,
    Barrier: Machine._arrive_at_barrier,
    CancelBarrier: Machine._cancel_barrier,
    ListBarriers: Machine._list_barriers,
    AwaitVerdict: Machine._await_verdict,
    MonitoredBarrier: Machine._await_verdict,
    ChangeGroup: Machine._change_group,
    AbortJob: Machine._abort_job,
    DeleteJob: Machine._delete_job,
    ReportExit: Machine._report_exit,
    ListJobs: Machine._list_jobs,
    ListEvents: Machine._list_events,
    DescribeJob: Machine._describe_job,
    CollectReports: Machine._collect_reports,
    **dict.fromkeys(get_args(TokenRequest), lambda self, *args: self.tokens.submit(*args[:2])),
}
"""By the type of the request."""
