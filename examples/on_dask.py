"""Ranks in workers of Dask, each on data that is there; a coordinator has to run already.

    allhands serve &
    ALLHANDS_URL=ah://127.0.0.1:7070 python examples/on_dask.py

On a cluster set ALLHANDS_URL and ALLHANDS_TLS_DIR for the workers, and give the scheduler's address
to `Client`: no token passes through Dask.
"""

import secrets
import sys

import numpy as np
from dask.distributed import Client, LocalCluster

import allhands as ah


def standardize(job: str, rank: int, size: int, rows: np.ndarray) -> np.ndarray:
    """Return these rows with the mean of all ranks' rows taken off."""
    # The default world is one of a process, so workers have one thread each.
    ah.init_process_group(job=job, rank=rank, world_size=size, timeout=120)
    try:
        sums = np.append(rows.sum(axis=0), float(len(rows)))
        ah.all_reduce(sums)
        centred: np.ndarray = rows - sums[:-1] / sums[-1]
        return centred
    finally:
        ah.destroy_process_group()  # the worker may be a rank of the next job


def main(size: int = 2) -> None:
    with LocalCluster(n_workers=size, threads_per_worker=1) as cluster, Client(cluster) as client:
        job = f"dask-{secrets.token_hex(4)}"
        workers = list(client.scheduler_info()["workers"])
        parts = [np.arange(6.0).reshape(3, 2) + 10 * rank for rank in range(size)]
        ranks = [
            # Each on a worker of its own, or ranks would wait for one that is queued behind them.
            client.submit(standardize, job, rank, size, part, workers=[worker], pure=False)
            for rank, (worker, part) in enumerate(zip(workers, parts, strict=True))
        ]
        rows = np.concatenate(client.gather(ranks))
        print(f"{size} ranks of job {job}: {len(rows)} rows with the means {rows.mean(axis=0)}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
