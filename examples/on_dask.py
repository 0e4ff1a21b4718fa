"""Ranks in workers of Dask, each on data that is there; a coordinator has to run already.

    allhands serve &
    ALLHANDS_URL=ah://127.0.0.1:7070 python examples/on_dask.py

On a cluster set ALLHANDS_URL and ALLHANDS_TLS_DIR for the workers, and give the scheduler's address
to `Client`: no token passes through Dask.
"""

import sys

import numpy as np
from dask.distributed import Client, LocalCluster

import allhands as ah
import allhands.dask


def standardize(rows: np.ndarray) -> np.ndarray:
    """Return these rows with the mean of all ranks' rows taken off."""
    sums = np.append(rows.sum(axis=0), float(len(rows)))
    ah.all_reduce(sums)
    centred: np.ndarray = rows - sums[:-1] / sums[-1]
    return centred


def main(size: int = 2) -> None:
    # The default world is one of a process, so workers have one thread each.
    with LocalCluster(n_workers=size, threads_per_worker=1) as cluster, Client(cluster) as client:
        parts = [np.arange(6.0).reshape(3, 2) + 10 * rank for rank in range(size)]
        with allhands.dask.open_world(client) as world:
            rows = np.concatenate(world.map(standardize, parts))
        means = rows.mean(axis=0)
        print(f"{size} ranks of job {world.job}: {len(rows)} rows with the means {means}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
