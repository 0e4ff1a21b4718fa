"""Train a small language model whose parameters are spread over the ranks, in one of four ways.

    allhands run -n 4 examples/torch/sharded.py
    allhands run -n 4 examples/torch/sharded.py --how tensor
    torchrun --nproc-per-node 4 examples/torch/sharded.py --how both
    allhands run -n 4 examples/torch/sharded.py --backend gloo

    allhands run -n 4 examples/torch/sharded.py --save /tmp/model
    allhands run -n 2 examples/torch/sharded.py --how tensor --load /tmp/model

It learns to go on with a text, letter by letter. Rank 0 prints how many parameters it holds, and
the loss over the data of all ranks: to float rounding that of Gloo, and that of any other way with
as much data. A model that was saved goes on where it was with another number of ranks, or spread in
another way.
"""

import argparse
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

TEXT = (
    "all hands on deck, all hands below, all hands together: pull, and let go; "
    "some hands are many, some hands are few, many hands carry what one cannot do. "
)
WAYS = ("fully_shard", "fsdp", "tensor", "both")
LENGTH, WIDTH, BATCH, DATA = 24, 64, 8, 4
LETTERS = sorted(set(TEXT))


class Block(nn.Module):  # type: ignore[misc]
    """What looks back at the letters before, and thinks about them."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.LayerNorm(WIDTH)
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)
        self.between = nn.LayerNorm(WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen = self.before(x)
        # As many heads as are here: tensor parallelism leaves a rank its part of them.
        heads = [
            layer(seen).unflatten(-1, (-1, 16)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        ]
        attended = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.narrow(nn.functional.gelu(self.widen(self.between(x))))


class Model(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.letters = nn.Embedding(len(LETTERS), WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.answer = nn.Linear(WIDTH, len(LETTERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.letters(x) + self.places(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.answer(x)


def spread(how: str) -> tuple[nn.Module, range]:
    """Return the model as it is spread over the ranks, and which data this rank has."""
    torch.manual_seed(0)
    model: Any = Model()
    size = dist.get_world_size()
    rows, columns = {"tensor": (1, size), "both": (2, size // 2)}.get(how, (size, 1))
    mesh = init_device_mesh("cpu", (rows, columns), mesh_dim_names=("data", "tensor"))
    if columns > 1:
        for block in model.blocks:
            split(block, mesh["tensor"])
    if how == "fsdp":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    elif rows > 1:
        for part in (*model.blocks, model):
            fully_shard(part, mesh=mesh["data"])
    share = DATA // rows
    start = mesh.get_local_rank("data") * share
    return model, range(start, start + share)


def split(block: nn.Module, mesh: DeviceMesh) -> None:
    """Give each rank of the mesh its columns of some layers, and its rows of the next."""
    plan: Any = dict.fromkeys(("query", "key", "value", "widen"), ColwiseParallel())
    parallelize_module(block, mesh, plan | dict.fromkeys(("out", "narrow"), RowwiseParallel()))


def batch(step: int, data: range) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pieces of the text, and the letters that come next in each place of them."""
    letters = torch.tensor([LETTERS.index(letter) for letter in TEXT])
    starts = [
        torch.randint(
            len(TEXT) - LENGTH,
            (BATCH,),
            generator=torch.Generator().manual_seed(step * DATA + number),
        )
        for number in data
    ]
    pieces = torch.stack([letters[at : at + LENGTH + 1] for at in torch.cat(starts).tolist()])
    return pieces[:, :-1], pieces[:, 1:]


def train(how: str, steps: int, save: str = "", load: str = "") -> tuple[list[float], int]:
    """Return the loss over all data before each step, and how many parameters are here."""
    model, data = spread(how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)
    first = restore(model, optimizer, load) if load else 0
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        given, wanted = batch(step, data)
        loss = nn.functional.cross_entropy(model(given).flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean, dist.ReduceOp.SUM)
        losses.append(mean.item() / dist.get_world_size())
    if save:
        dcp.save(state(model, optimizer, first + steps), checkpoint_id=save)
    local = [one.to_local() if hasattr(one, "to_local") else one for one in model.parameters()]
    return losses, sum(one.numel() for one in local)


def state(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> dict[str, Any]:
    parameters, moments = get_state_dict(model, optimizer)
    return {"parameters": parameters, "moments": moments, "step": step}


def restore(model: nn.Module, optimizer: torch.optim.Optimizer, folder: str) -> int:
    """Fill the model and its optimizer with what was saved; return the step that comes next."""
    saved = state(model, optimizer, 0)
    dcp.load(saved, checkpoint_id=folder)
    set_state_dict(
        model,
        optimizer,
        model_state_dict=saved["parameters"],
        optim_state_dict=saved["moments"],
    )
    return int(saved["step"])


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--backend", default="allhands")
    options.add_argument("--how", choices=WAYS, default="fully_shard")
    options.add_argument("--steps", type=int, default=100)
    options.add_argument("--save", default="", help="folder for the model after the last step")
    options.add_argument("--load", default="", help="folder of the model to go on with")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group(chosen.backend)
    losses, here = train(chosen.how, chosen.steps, chosen.save, chosen.load)
    if dist.get_rank() == 0:
        whole = sum(one.numel() for one in Model().parameters())
        print(f"{dist.get_world_size()} ranks over {dist.get_backend()}, {chosen.how}:")
        print(f"{here} of {whole} parameters are here")
        for step in range(0, chosen.steps, max(chosen.steps // 10, 1)):
            print(f"step {step:4}  loss {losses[step]:.6f}")
        print(f"at the end     {losses[-1]:.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
