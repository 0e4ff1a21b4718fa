"""Sections of a program: nesting in threads and tasks, names, what is kept."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

import allhands as ah
from allhands.coordinator.section_codec import decode_sections, encode_sections
from allhands.runtime import sections
from allhands.runtime.sections import KEPT_SECTIONS, MAX_PATH, SectionLog, SectionReader


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> SectionLog:
    """The log of the process, empty."""
    made = SectionLog()
    monkeypatch.setattr(sections, "process_log", made)
    return made


def current(log: SectionLog) -> str | None:
    found = log.find_current(None)
    return None if found is None else found.name


def ended(log: SectionLog) -> list[str]:
    return [one.name for one in log.list_records(None) if one.finished]


def test_sections_nest_and_are_left_in_order(log: SectionLog) -> None:
    assert current(log) is None
    with ah.section("epoch"):
        assert current(log) == "epoch"
        for _ in range(2):
            with ah.section("load"):
                assert current(log) == "epoch/load"
        assert current(log) == "epoch"
    assert current(log) is None
    assert ended(log) == ["epoch/load", "epoch/load", "epoch"]
    first = log.list_records(None)[0]
    assert first.finished >= first.started > 0
    assert first.thread == threading.current_thread().name


def test_a_section_is_left_by_an_exception(log: SectionLog) -> None:
    with pytest.raises(LookupError), ah.section("load"):
        raise LookupError
    assert current(log) is None
    assert ended(log) == ["load"]


def test_functions_and_coroutines_are_decorated(log: SectionLog) -> None:
    named = ah.section("step")

    @named
    def once(depth: int) -> str | None:
        return once(depth - 1) if depth else current(log)

    @named
    async def later() -> str | None:
        await asyncio.sleep(0)
        return current(log)

    assert once(1) == "step/step"
    assert once.__name__ == "once"
    assert asyncio.run(later()) == "step"
    assert current(log) is None


def test_tasks_keep_their_own_nesting(log: SectionLog) -> None:
    async def act(name: str, entered: asyncio.Event, leave: asyncio.Event) -> None:
        with ah.section(name):
            entered.set()
            await leave.wait()

    async def main() -> None:
        events = [asyncio.Event() for _ in range(4)]
        with ah.section("all"):
            first = asyncio.create_task(act("first", events[0], events[1]))
            await events[0].wait()
            second = asyncio.create_task(act("second", events[2], events[3]))
            await events[2].wait()
            assert current(log) == "all/second"
            events[1].set()
            await first
            assert current(log) == "all/second"
            events[3].set()
            await second
            assert current(log) == "all"

    asyncio.run(main())
    assert ended(log) == ["all/first", "all/second", "all"]


def test_the_main_thread_goes_before_others(log: SectionLog) -> None:
    entered, leave = threading.Event(), threading.Event()

    def act() -> None:
        with ah.section("prefetch"):
            entered.set()
            leave.wait(10)

    other = threading.Thread(target=act, name="loader")
    other.start()
    entered.wait(10)
    assert current(log) == "prefetch"
    with ah.section("step"):
        assert current(log) == "step"
        assert other.ident is not None
        reader = SectionReader(log, other.ident)
        found = reader.find_current()
        assert found is not None
        assert found.name == "prefetch"
        assert [one.name for one in reader.list_records()] == ["prefetch"]
        assert SectionReader(log, -1).find_current() is None
    leave.set()
    other.join()
    assert [one.thread for one in log.list_records(None)] == ["MainThread", "loader"]


@pytest.mark.parametrize("name", ["", "a" * 65, "two\nlines", "\x1b[31m", "\u202eright to left"])
def test_names_that_would_garble_a_terminal_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 printable characters"):
        ah.section(name)


def test_a_name_is_text() -> None:
    with pytest.raises(TypeError, match="must be a str, not int"):
        ah.section(3)  # type: ignore[arg-type]


def test_deep_nesting_is_cut_at_its_outer_end(log: SectionLog) -> None:
    def enter(depth: int) -> Iterator[str]:
        with ah.section(f"level{depth}" + "x" * 40):
            yield current(log) or ""
            if depth:
                yield from enter(depth - 1)

    *_, deepest = enter(5)
    assert len(deepest) == MAX_PATH
    assert deepest.startswith("…")
    assert deepest.endswith("/level0" + "x" * 40)


def test_the_latest_sections_are_kept_in_bounded_memory() -> None:
    log = SectionLog(kept=3)
    for number in range(5):
        log.leave(log.enter(str(number), None))
    assert ended(log) == ["2", "3", "4"]
    assert KEPT_SECTIONS == 1024


def test_a_report_has_the_latest_sections_that_fit() -> None:
    log = SectionLog()
    for number in range(100):
        log.leave(log.enter(f"section {number}", None))
    log.enter("now", None)
    told = encode_sections(log.list_records(None), 500)
    assert 5 < len(told) < 20
    assert sum(one.ByteSize() + 4 for one in told) <= 500
    found = decode_sections(told)
    assert [one.name for one in found] == [
        *(f"section {number}" for number in range(101 - len(told), 100)),
        "now",
    ]
    assert found[-1].finished == 0
    assert encode_sections(log.list_records(None), 5) == []
