"""Mends of listings: they go where they belong, or say that the listing is another one."""

import pytest

from parity.pytorch.seeds import mends


def test_a_head_that_was_lost_is_put_before_its_body() -> None:
    found = mends._before(r"^    return 1", "def one():")(["x = 1", "    return 1"])
    assert found == ["x = 1", "def one():", "    return 1"]


def test_a_head_is_put_after_what_is_to_come_before_it() -> None:
    lines = ["    pass", "class A:", "    pass"]
    assert mends._before("pass", "  here", after="class")(lines)[2] == "  here"


def test_lines_are_moved_up_to_where_the_next_part_begins() -> None:
    lines = ["def a():", "    pass", "", "class B:", "    pass"]
    assert mends._moved("^def", "^class", 4)(lines) == [
        "    def a():",
        "        pass",
        "",
        "class B:",
        "    pass",
    ]
    assert mends._moved("^def", "^class", 4)(lines) != lines
    assert mends._moved("^    pass", "^class", -4)(lines)[1] == "pass"


def test_arguments_are_closed_once() -> None:
    assert mends._closed_once(["def a(", "    ):", "):", "    pass"]) == [
        "def a(",
        "    ):",
        "    pass",
    ]


def test_a_gate_is_taken_from_the_test_that_it_stands_before_and_from_no_other() -> None:
    lines = ["@skip_if_lt_x_gpu(2)", "def test_a(self):", "def test_b(self):"]
    assert mends._ungated("test_a")(lines) == lines[1:]
    with pytest.raises(mends.ListingChanged, match="test_b has no gate"):
        mends._ungated("test_b")(lines)


@pytest.mark.parametrize(
    "mend",
    [
        mends._before("there", "x"),
        mends._moved("there", "x", 4),
        mends._without("there"),
        mends._replaced("there", "x"),
    ],
)
def test_a_listing_without_the_place_of_a_mend_is_another_one(mend: mends.Mend) -> None:
    with pytest.raises(mends.ListingChanged, match="'there'"):
        mend(["nothing of it"])
