"""Training that torchrun starts again when a worker is killed, from the last step that was saved.

    torchrun --nproc-per-node=3 --rdzv-backend=allhands --max-restarts=1 \\
        examples/torch/restarts.py --kill-rank 1

Rank 1 kills itself in the middle, once. torchrun's output says which rank was lost, all workers
are started again, read what rank 0 saved, and the loss goes on falling from there. Over several
hosts all agents name the same `--rdzv-endpoint=host:port`, and with `--nnodes=1:4` nodes may come
and go.
"""

import argparse
import os
import signal
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def saved_at(folder: Path) -> Path:
    """Return where this run saves: the same for all its restarts."""
    return folder / f"restarts-{os.environ['TORCHELASTIC_RUN_ID']}.pt"


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=8)
    arguments.add_argument("--kill-rank", type=int, default=-1)
    arguments.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = arguments.parse_args()

    dist.init_process_group("allhands")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    x = torch.randn(96, 4)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]])
    mine = slice(rank, None, size)

    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    first = 0
    path = saved_at(given.folder)
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        first = saved["step"]
    if rank == 0:
        print(f"{size} ranks begin at step {first}", flush=True)

    for step in range(first, given.steps):
        if rank == given.kill_rank and first == 0 and step == given.steps // 2:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x[mine]), y[mine])
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss := loss.detach(), op=dist.ReduceOp.AVG)
        if rank == 0:
            print(f"step {step}: loss {loss.item():.4f}", flush=True)
            torch.save({"model": model.state_dict(), "step": step + 1}, f"{path}.new")
            os.replace(f"{path}.new", path)
    dist.barrier()
    if rank == 0:
        path.unlink()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
