"""The examples of sharded programs: true output, equal over Gloo."""

import runpy
import tempfile
from pathlib import Path
from typing import Any

import pytest

from support.torch.ranks import run_ranks

# PyTorch warns of what parts of it do, or will do another way.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

EXAMPLES = Path(__file__).parents[2] / "examples" / "torch"


def example(name: str) -> dict[str, Any]:
    """Return the definitions of an example."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def test_a_model_trains_alike_however_it_is_spread_and_over_gloo() -> None:
    def body(rank: int) -> dict[str, tuple[list[float], int]]:
        train = example("sharded")["train"]
        return {how: train(how, 4) for how in ("fully_shard", "fsdp", "tensor", "both")}

    mine, theirs = (
        run_ranks(4, body, backend=backend, deadline=100.0)[0] for backend in ("allhands", "gloo")
    )
    wanted, _ = theirs["fully_shard"]
    assert wanted[-1] < wanted[0] / 1.5
    for how, (losses, here) in mine.items():
        assert losses == pytest.approx(theirs[how][0], rel=1e-5), how
        assert losses == pytest.approx(wanted, rel=1e-4), how
        assert here == theirs[how][1]
        assert here < 104_729 / 2


def test_a_saved_model_goes_on_in_fewer_ranks_and_spread_in_another_way() -> None:
    with tempfile.TemporaryDirectory() as folder:

        def whole(rank: int) -> list[float]:
            losses: list[float] = example("sharded")["train"]("fully_shard", 6)[0]
            return losses

        def half(rank: int) -> None:
            example("sharded")["train"]("both", 3, save=folder)

        def rest(rank: int) -> list[float]:
            losses: list[float] = example("sharded")["train"]("tensor", 3, load=folder)[0]
            return losses

        wanted = run_ranks(2, whole)[0]
        run_ranks(4, half)
        assert run_ranks(2, rest)[0] == pytest.approx(wanted[3:], rel=1e-4)


def test_experts_on_ranks_learn_as_over_gloo_and_as_one_graph() -> None:
    def body(rank: int) -> list[float]:
        losses: list[float] = example("experts")["train"](20)
        return losses

    def compiled(rank: int) -> list[float]:
        defined = example("experts")
        losses: list[float] = defined["train"](4, backend="aot_eager")
        return losses

    mine, theirs = (run_ranks(4, body, backend=backend)[0] for backend in ("allhands", "gloo"))
    assert mine == pytest.approx(theirs, rel=1e-5)
    assert mine[-1] < mine[0] / 2
    assert run_ranks(4, compiled)[0] == pytest.approx(mine[:4], rel=1e-5)


def test_any_rank_of_a_large_world_says_what_it_holds() -> None:
    told = example("any_rank")["be"](1000, 1024, 8)
    assert told[0] == "rank 1000 of 1024 holds 8204 of 8393728 parameters"
    assert told[1] == "it shares layers with ranks 1000 to 1007"
    assert told[2].startswith("a step makes 4 calls: ")
