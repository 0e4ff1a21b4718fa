"""Output is cut into whole lines, whatever pieces arrive."""

from hypothesis import given
from hypothesis import strategies as st

from allhands.launcher.line_splitter import LineSplitter, prefix_lines


def test_a_line_waits_until_it_is_complete() -> None:
    cutter = LineSplitter()
    assert cutter.feed(b"one\ntw") == b"one\n"
    assert cutter.feed(b"o\n") == b"two\n"


def test_the_last_line_gets_the_end_that_it_lacks() -> None:
    cutter = LineSplitter()
    assert cutter.feed(b"no end") == b""
    assert cutter.flush() == b"no end\n"
    assert cutter.flush() == b""


def test_a_line_that_never_ends_takes_bounded_memory() -> None:
    cutter = LineSplitter(max_bytes=10)
    assert cutter.feed(b"123456") == b""
    assert cutter.feed(b"7890") == b"1234567890\n"


def test_carriage_returns_and_bytes_that_are_no_text_pass_through() -> None:
    assert (
        prefix_lines(b"[0] ", LineSplitter().feed(b"\r50%\r\xff\xfe\n")) == b"[0] \r50%\r\xff\xfe\n"
    )


def test_every_line_gets_the_prefix() -> None:
    assert prefix_lines(b"[1] ", b"a\n\nb\n") == b"[1] a\n[1] \n[1] b\n"
    assert prefix_lines(b"[1] ", b"") == b""


@given(st.lists(st.binary(max_size=20).map(lambda data: data.replace(b"a", b"\n"))))
def test_nothing_is_lost_or_reordered(chunks: list[bytes]) -> None:
    cutter = LineSplitter(max_bytes=1000)
    pieces = [*map(cutter.feed, chunks), cutter.flush()]
    whole = b"".join(chunks)
    assert b"".join(pieces) == whole + (b"" if not whole or whole.endswith(b"\n") else b"\n")
    assert all(piece == b"" or piece.endswith(b"\n") for piece in pieces)
