"""The full-screen view itself: three screens that are drawn anew about once a second."""

import time
from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static
from textual.worker import Worker, WorkerState

from allhands.coordinator.diagnosis import Diagnosis, describe_rank
from allhands.coordinator.stalls import describe_stall, list_stalls
from allhands.coordinator.status import JobStatus
from allhands.coordinator.tables import render_plain
from allhands.errors import AllhandsError
from allhands.escapes import escape_line, escape_lines
from allhands.top import view
from allhands.top.rates import CallRates
from allhands_proto.quick_dataclass import dataclass

REFRESH_SECONDS = 1.0
_MAX_STALLS = 3

_STYLES = {
    view.Tone.PLAIN: "",
    view.Tone.WARNING: "yellow",
    view.Tone.FAILURE: "bold red",
    view.Tone.OVER: "dim",
}


class Source(Protocol):
    """The coordinator as this view asks it; calls block, each at most until its own deadline."""

    @property
    def name(self) -> str:
        """The address, for people."""
        ...

    def read_jobs(self) -> Sequence[JobStatus]: ...

    def diagnose(self, job: str) -> Diagnosis: ...


@dataclass(frozen=True, slots=True)
class Reading:
    """An answer of the coordinator."""

    at: float
    """When, in seconds of the monotonic clock."""
    jobs: tuple[JobStatus, ...]
    diagnosis: Diagnosis | None
    """Of the job whose rank is looked at, if one is."""

    def find_job(self, name: str) -> JobStatus | None:
        return next((job for job in self.jobs if job.job == name), None)


class View(Screen[None]):
    """A screen of the view, which is shown each reading."""

    def __init__(self, rates: CallRates) -> None:
        super().__init__()
        self._rates = rates

    @property
    def diagnosed(self) -> str | None:
        """The job that this screen wants a diagnosis of, which asks every rank."""
        return None

    def show(self, reading: Reading) -> None:
        raise NotImplementedError


class _Table(DataTable[Text]):
    """A table whose rows are replaced, with the cursor left on the row of the same key."""

    def __init__(self, columns: Sequence[str], name: str) -> None:
        super().__init__(id=name, cursor_type="row", zebra_stripes=False, cell_padding=1)
        self._columns = columns

    def on_mount(self) -> None:
        self.add_columns(*self._columns)

    def get_key(self) -> str | None:
        """Return the key of the row under the cursor; None: there are no rows."""
        if not self.row_count:
            return None
        return self.coordinate_to_cell_key(self.cursor_coordinate).row_key.value

    def replace_rows(self, rows: Sequence[view.Row]) -> None:
        key, scroll = self.get_key(), self.scroll_y
        self.clear()
        for row in rows:
            style = _STYLES[row.tone]
            self.add_row(*(Text(cell, style=style) for cell in row.cells), key=row.key)
        found = [at for at, row in enumerate(rows) if row.key == key]
        if found:
            self.move_cursor(row=found[0], animate=False, scroll=False)
        self.scroll_to(y=scroll, animate=False)


class JobsView(View):
    """All jobs of the coordinator."""

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield _Table(view.JOB_COLUMNS, "jobs")
        yield Static(id="problem")
        yield Footer()

    def show(self, reading: Reading) -> None:
        live = sum(job.ended is None for job in reading.jobs)
        said = f"{live} job{'' if live == 1 else 's'}, {len(reading.jobs) - live} ended"
        self.query_one("#title", Static).update(Text(said))
        self.query_one(_Table).replace_rows(view.list_jobs(reading.jobs, self._rates))

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        if event.row_key.value is not None:
            self.app.push_screen(JobView(self._rates, event.row_key.value))


class JobView(View):
    """The groups and the ranks of a job."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.leave", "Back"),
        Binding("o", "order", "Order"),
        Binding("tab", "app.focus_next", "Groups/ranks"),
    ]

    def __init__(self, rates: CallRates, job: str) -> None:
        super().__init__(rates)
        self._job = job
        self._order = view.Order.RANK
        self._reading: Reading | None = None

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        yield Static(id="stalls")
        yield _Table(view.GROUP_COLUMNS, "groups")
        yield _Table(view.RANK_COLUMNS, "ranks")
        yield Static(id="problem")
        yield Footer()

    def on_mount(self) -> None:
        self.query_one("#ranks", _Table).focus()

    def show(self, reading: Reading) -> None:
        self._reading = reading
        job = reading.find_job(self._job)
        title = self.query_one("#title", Static)
        if job is None:
            title.update(Text(f"job {escape_line(self._job)}: not at this coordinator any more"))
            return
        said = f"job {escape_line(job.job)}: {job.state}, epoch {job.epoch}, by {self._order.value}"
        title.update(Text(said))
        stalls = map(describe_stall, list_stalls(job.members, job.groups)[:_MAX_STALLS])
        self.query_one("#stalls", Static).update(Text("\n".join(stalls)))
        self.query_one("#groups", _Table).replace_rows(view.list_groups(job, self._rates))
        self.query_one("#ranks", _Table).replace_rows(view.list_ranks(job, self._order))

    def action_order(self) -> None:
        self._order = self._order.follow()
        if self._reading is not None:
            self.show(self._reading)

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        key = event.row_key.value
        if event.data_table.id == "ranks" and key is not None:
            self.app.push_screen(RankView(self._rates, self._job, int(key)))


class RankView(View):
    """A rank: its calls under way, and the stack of its main thread."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace", "app.leave", "Back")]

    def __init__(self, rates: CallRates, job: str, rank: int) -> None:
        super().__init__(rates)
        self._job, self._rank = job, rank

    @property
    def diagnosed(self) -> str | None:
        return self._job

    def compose(self) -> ComposeResult:
        yield Static(id="title")
        with VerticalScroll():
            yield Static("asking the ranks ...", id="rank")
        yield Static(id="problem")
        yield Footer()

    def show(self, reading: Reading) -> None:
        title = Text(f"rank {self._rank} of job {escape_line(self._job)}")
        self.query_one("#title", Static).update(title)
        found = reading.diagnosis
        if found is None or found.job != self._job:
            return
        said = render_plain(describe_rank(found, self._rank))
        self.query_one("#rank", Static).update(Text(escape_lines(said)))


class Top(App[None]):
    """`allhands top`: jobs, then a job, then a rank; reads on while the coordinator is away."""

    TITLE = "allhands top"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen { layout: vertical; }
    #title { height: 1; text-style: bold; padding: 0 1; }
    #stalls { height: auto; color: yellow; padding: 0 1; }
    #problem { height: auto; max-height: 3; color: red; padding: 0 1; }
    DataTable { height: 1fr; }
    #groups { height: auto; max-height: 7; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,ctrl+c", "quit", "Quit")]

    def __init__(
        self,
        source: Source,
        job: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(ansi_color=True)
        self._source = source
        self._first_job = job
        self._clock = clock
        self._rates = CallRates()
        self._reading: Reading | None = None
        self._answered = clock()

    def on_mount(self) -> None:
        self.push_screen(JobsView(self._rates))
        if self._first_job is not None:
            self.push_screen(JobView(self._rates, self._first_job))
        self._read()

    def action_leave(self) -> None:
        """Go back to the screen before; the last one stays."""
        if isinstance(self.screen, JobView | RankView):
            self.pop_screen()
            self._show()

    def _read(self) -> None:
        """Ask the coordinator on a thread, so that the view stays responsive."""
        wanted = self.screen.diagnosed if isinstance(self.screen, View) else None
        self.run_worker(
            lambda: self._ask(wanted), group="reading", exit_on_error=False, thread=True
        )

    def _ask(self, diagnosed: str | None) -> Reading:
        jobs = tuple(self._source.read_jobs())
        names = {job.job for job in jobs}
        diagnosis = self._source.diagnose(diagnosed) if diagnosed in names and diagnosed else None
        return Reading(self._clock(), jobs, diagnosis)

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        match event.state:
            case WorkerState.SUCCESS if isinstance(event.worker.result, Reading):
                self._reading = event.worker.result
                self._answered = self._reading.at
                self._rates.add(self._reading.at, self._reading.jobs)
                self._show()
            case WorkerState.ERROR:
                error = event.worker.error
                if not isinstance(error, AllhandsError | OSError):
                    raise error or AssertionError("a failed reading has an error")
                self._say_problem(error)
            case _:
                return
        self.set_timer(REFRESH_SECONDS, self._read)

    def on_screen_resume(self) -> None:
        self._show()

    def _show(self) -> None:
        if self._reading is not None and isinstance(self.screen, View) and self.screen.is_mounted:
            self.screen.show(self._reading)
            self.screen.query_one("#problem", Static).update("")

    def _say_problem(self, error: BaseException) -> None:
        silent = self._clock() - self._answered
        said = f"no answer from {self._source.name} for {silent:.0f} s: {error}"
        self.screen.query_one("#problem", Static).update(Text(escape_line(said)))
