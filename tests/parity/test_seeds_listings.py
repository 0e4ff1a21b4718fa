"""Repairs of listings: each fits the listing, or reports a changed listing."""

import pytest

from support.seeds import repairs


def test_a_head_that_was_lost_is_put_before_its_body() -> None:
    found = repairs._before(r"^    return 1", "def one():")(["x = 1", "    return 1"])
    assert found == ["x = 1", "def one():", "    return 1"]


def test_a_head_is_put_after_what_is_to_come_before_it() -> None:
    lines = ["    pass", "class A:", "    pass"]
    assert repairs._before("pass", "  here", after="class")(lines)[2] == "  here"


def test_lines_are_moved_up_to_where_the_next_part_begins() -> None:
    lines = ["def a():", "    pass", "", "class B:", "    pass"]
    assert repairs._moved("^def", "^class", 4)(lines) == [
        "    def a():",
        "        pass",
        "",
        "class B:",
        "    pass",
    ]
    assert repairs._moved("^def", "^class", 4)(lines) != lines
    assert repairs._moved("^    pass", "^class", -4)(lines)[1] == "pass"


def test_arguments_are_closed_once() -> None:
    assert repairs._closed_once(["def a(", "    ):", "):", "    pass"]) == [
        "def a(",
        "    ):",
        "    pass",
    ]


def test_a_gate_is_taken_from_the_test_that_it_stands_before_and_from_no_other() -> None:
    lines = ["@skip_if_lt_x_gpu(2)", "def test_a(self):", "def test_b(self):"]
    assert repairs._ungated("test_a")(lines) == lines[1:]
    with pytest.raises(repairs.ListingChanged, match="test_b has no gate"):
        repairs._ungated("test_b")(lines)


@pytest.mark.parametrize(
    "repair",
    [
        repairs._before("there", "x"),
        repairs._moved("there", "x", 4),
        repairs._without("there"),
        repairs._replaced("there", "x"),
    ],
)
def test_a_listing_without_the_place_of_a_mend_is_another_one(repair: repairs.Repair) -> None:
    with pytest.raises(repairs.ListingChanged, match="'there'"):
        repair(["nothing of it"])
