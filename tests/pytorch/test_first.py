"""The backend, from its name to numbers."""

import torch
import torch.distributed as dist

from torch_ranks import on_ranks, run_ranks


@on_ranks(2)
def test_a_program_that_names_the_backend_gets_its_sums(rank: int) -> None:
    x = torch.full((4,), rank + 1.0)
    dist.all_reduce(x)
    assert x.tolist() == [3.0] * 4
    assert dist.get_backend() == "allhands"


def test_the_backend_can_be_named_for_the_processor_alone() -> None:
    def body(rank: int) -> list[float]:
        x = torch.full((2,), rank + 1.0)
        dist.all_reduce(x)
        return list(x.tolist())

    assert run_ranks(3, body, backend="cpu:allhands") == [[6.0, 6.0]] * 3
