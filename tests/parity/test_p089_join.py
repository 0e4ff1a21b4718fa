"""Join: uneven inputs, shadowing hooks, and errors at the right place."""

import warnings
from typing import Any

import numpy as np
import pytest

import allhands as ah
from allhands.testing import RankError, run_threads

SIZE = 4
BASE_INPUTS = 3
BEFORE, AFTER = 41, 42


class AllReducer(ah.Joinable):
    """Makes some all_reduces for each input."""

    def __init__(self, group: ah.Group | None = None) -> None:
        self.group = group
        self.after = np.array([BEFORE])

    def __call__(self, count: int = 1) -> int:
        ah.Join.notify_join_context(self)
        total = 0
        for _ in range(count):
            ones = np.ones(1)
            ah.all_reduce(ones, group=self.group)
            total += int(ones[0])
        return total

    def join_hook(self, **kwargs: Any) -> ah.JoinHook:
        return _Hook(self, kwargs.get("num_allreduces", 1), kwargs.get("run_post_hooks", False))

    @property
    def join_process_group(self) -> ah.Group | None:
        return self.group


class _Hook(ah.JoinHook):
    def __init__(self, owner: AllReducer, count: int, runs_after: bool) -> None:
        self.owner, self.count, self.runs_after = owner, count, runs_after

    def main_hook(self) -> None:
        for _ in range(self.count):
            ah.all_reduce(np.zeros(1), group=self.owner.group)

    def post_hook(self, is_last_joiner: bool) -> None:
        if not self.runs_after:
            return
        rank = ah.get_rank()
        last = np.array([rank if is_last_joiner else -1])
        ah.all_reduce(last, ah.ReduceOp.MAX)
        assert last[0] == SIZE - 1  # it has the most inputs
        if rank == last[0]:
            self.owner.after[:] = AFTER
        ah.broadcast(self.owner.after, src=int(last[0]))


def inputs_of(rank: int, uneven: bool = True) -> range:
    return range(BASE_INPUTS + rank * uneven)


def total_of(rank: int) -> int:
    """Return a rank's sum while the joined ranks shadow its all_reduces."""
    return sum(SIZE - max(0, at - BASE_INPUTS + 1) for at in inputs_of(rank))


def joined(
    joinables: int = 1, all_reduces: int = 1, uneven: bool = True, **terms: Any
) -> list[tuple[int, list[int]]]:
    """Run the ranks; return each rank's sum and post hooks' records."""

    def body(rank: int) -> tuple[int, list[int]]:
        made = [AllReducer() for _ in range(joinables)]
        total = 0
        with ah.Join(made, num_allreduces=all_reduces, **terms):
            for _ in inputs_of(rank, uneven):
                for one in made:
                    total += one(all_reduces)
        return total, [int(one.after[0]) for one in made]

    return run_threads(SIZE)(body)


def thrown(joinables: list[AllReducer], inputs: int) -> str:
    """Iterate over a rank's inputs; return the error raised meanwhile."""
    try:
        with ah.Join(joinables, throw_on_early_termination=True):
            for _ in range(inputs):
                for one in joinables:
                    one()
    except RuntimeError as error:
        return str(error)
    return ""


def test_p089_main_hooks_shadow_the_collectives_of_ranks_without_inputs():
    assert [total for total, _ in joined()] == [total_of(rank) for rank in range(SIZE)]
    assert total_of(SIZE - 1) == 12 + 3 + 2 + 1


def test_p089_main_and_post_hooks_of_one_joinable():
    found = joined(run_post_hooks=True)
    assert found == [(total_of(rank), [AFTER]) for rank in range(SIZE)]


def test_p090_post_hooks_broadcast_from_the_last_joiner():
    found = joined(all_reduces=0, run_post_hooks=True)
    assert found == [(0, [AFTER])] * SIZE


def test_p090_every_rank_joins_last_with_even_inputs():
    lasts: list[bool] = []

    class Noting(AllReducer):
        def join_hook(self, **kwargs: Any) -> ah.JoinHook:
            hook = ah.JoinHook()
            hook.post_hook = lasts.append  # type: ignore[method-assign]
            return hook

    def body(rank: int, extra: int) -> None:
        one = Noting()
        with ah.Join([one]):
            for _ in range(2 + extra * (rank == 0)):
                ah.Join.notify_join_context(one)

    run_threads(3)(lambda rank: body(rank, 0))
    assert lasts == [True, True, True]
    lasts.clear()
    run_threads(3)(lambda rank: body(rank, 1))
    assert sorted(lasts) == [False, False, True]


def test_p091_several_joinables():
    found = joined(joinables=3, run_post_hooks=True)
    assert found == [(3 * total_of(rank), [AFTER] * 3) for rank in range(SIZE)]


@pytest.mark.parametrize("joinables", [1, 3])
def test_p092_disabled_join_makes_no_call_of_its_own(joinables: int):
    def body(rank: int) -> tuple[int, int]:
        made = [AllReducer() for _ in range(joinables)]
        total = 0
        with ah.Join(made, enable=False, run_post_hooks=True):
            for _ in range(BASE_INPUTS):
                total += sum(one() for one in made)
        assert [int(one.after[0]) for one in made] == [BEFORE] * joinables
        return total, ah.default_group().sequence

    calls = BASE_INPUTS * joinables
    assert run_threads(SIZE)(body) == [(SIZE * calls, calls)] * SIZE


@pytest.mark.parametrize("joinables", [1, 3])
def test_p093_early_termination_throws_on_all_ranks(joinables: int):
    def body(rank: int) -> str:
        made = [AllReducer() for _ in range(joinables)]
        return thrown(made, len(inputs_of(rank)))

    others = "Detected at least one rank that exhausted inputs. Throwing across all ranks."
    expected = ["Rank 0 exhausted all inputs.", *[others] * (SIZE - 1)]
    assert run_threads(SIZE)(body) == expected


def test_p093_even_inputs_throw_nothing():
    found = joined(uneven=False, throw_on_early_termination=True, run_post_hooks=False)
    assert found == [(SIZE * BASE_INPUTS, [BEFORE])] * SIZE


def test_p094_keyword_arguments_reach_the_hooks():
    found = joined(all_reduces=2)
    assert [total for total, _ in found] == [2 * total_of(rank) for rank in range(SIZE)]


def test_p094_keyword_arguments_reach_every_hook_unchanged():
    seen: list[dict[str, Any]] = []

    class Noting(AllReducer):
        def join_hook(self, **kwargs: Any) -> ah.JoinHook:
            seen.append(kwargs)
            return ah.JoinHook()

    def body() -> None:
        with ah.Join([Noting(), Noting()], divisor=7, name="x"):
            pass

    run_threads(1)(body)
    assert seen == [{"divisor": 7, "name": "x"}] * 2


def test_joinable_is_free_again_after_the_block():
    """A joinable notifies only within the block: afterwards no rank would answer."""

    def body() -> tuple[Any, int]:
        one = AllReducer()
        with ah.Join([one]):
            one()
        before = ah.default_group().sequence
        told = ah.Join.notify_join_context(one)
        return told, ah.default_group().sequence - before

    assert run_threads(2)(body) == [(None, 0)] * 2


def test_exception_in_the_block_runs_no_hooks():
    def body(rank: int) -> None:
        made = AllReducer()
        with ah.Join([made], run_post_hooks=True):
            raise LookupError("no such batch")

    with pytest.raises(RankError, match="LookupError: no such batch") as it:
        run_threads(2)(body)
    assert all(isinstance(one, LookupError) for one in it.value.errors.values())


def test_join_refuses_what_cannot_join():
    def body(rank: int) -> None:
        pair = ah.new_group([0, 1])
        with pytest.raises(ValueError, match="requires at least one joinable"):
            ah.Join([])
        with pytest.raises(TypeError, match="instances of Joinable, not int"):
            ah.Join([3])  # type: ignore[list-item]
        if rank < 2:
            with pytest.raises(ValueError, match="multiple process groups"):
                ah.Join([AllReducer(), AllReducer(pair)])
            ah.Join([AllReducer(), AllReducer(ah.default_group())])
        else:
            with pytest.raises(ValueError, match="this rank is not in group"):
                ah.Join([AllReducer(pair)])

    run_threads(3)(body)


def test_join_in_a_group_names_the_rank_of_the_group():
    def body(rank: int) -> str:
        pair = ah.new_group([2, 1])
        if rank == 0:
            return ""
        return thrown([AllReducer(pair)], 2 if rank == 2 else 3).partition(" inputs.")[0]

    told = run_threads(3)(body)
    assert told == [
        "",
        "Detected at least one rank that exhausted",
        "Rank 0 exhausted all",
    ]


def test_great_skew_is_warned_of(monkeypatch: pytest.MonkeyPatch):
    from allhands.parallel import join

    monkeypatch.setattr(join, "_SKEW_THRESHOLD", 5)

    def body(rank: int) -> None:
        one = AllReducer()
        with ah.Join([one]):
            for _ in range(7 * rank):
                one()

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        run_threads(2)(body)
    assert [str(one.message).partition(":")[0] for one in seen] == [
        "Detected uneven input skew of greater than 5"
    ]
