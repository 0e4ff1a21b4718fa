"""The mutations of rows match the present code, and rows without any are known."""

import pytest

from mutations import seen
from mutations.mutation import ROOT, DoesNotFit, Mutation
from mutations.table import MUTATIONS
from support.parity.rows import LATER, ROWS, TORCH, TORCH_ONLY

WITHOUT = frozenset(LATER)
"""Rows of which nobody has written what breaks them: there is nothing to break yet."""

each_mutation = pytest.mark.parametrize(
    "mutation", MUTATIONS, ids=[f"P{one.row}-{at}" for at, one in enumerate(MUTATIONS)]
)


@each_mutation
def test_a_mutation_fits_its_file_exactly_once(mutation: Mutation) -> None:
    text = (ROOT / mutation.path).read_text()
    assert mutation.applied(text) != text


@each_mutation
def test_a_mutation_is_of_a_row_that_has_tests_on_its_face(mutation: Mutation) -> None:
    assert mutation.tests
    assert mutation.face == TORCH or mutation.row not in TORCH_ONLY


def test_a_text_that_is_not_there_once_is_refused() -> None:
    mutation = Mutation(1, "nothing", "group/group.py", "twice", "once")
    for text in ("", "twice and twice"):
        with pytest.raises(DoesNotFit, match=r"P1, nothing: \S*/group/group\.py has this"):
            mutation.applied(text)


def test_every_row_has_a_mutation_but_those_that_are_known_to_have_none() -> None:
    assert {*ROWS} - {one.row for one in MUTATIONS} == WITHOUT


def test_what_was_noticed_is_by_tests_of_the_row() -> None:
    known = {seen.key(one): one for one in MUTATIONS}
    for key, what in seen.read().items():
        if key in known:
            assert {f"tests/{one}" for one in what.noticed} <= {*known[key].tests}, known[key]
