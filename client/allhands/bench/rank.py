"""One rank of a benchmark; `allhands bench` launches it and reads what rank 0 writes."""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np

import allhands as ah
from allhands.bench.peers import PEERS, Allhands, Peer, Vector

_SECONDS_PER_SIZE = 6.0
_FEWEST_ROUNDS = 5
_MOST_ROUNDS = 200


def measure(peers: list[Peer], nbytes: int) -> dict[str, list[float]]:
    """Time all_reduce of `nbytes` by each peer in turn, round after round; seconds.

    Every round works on other numbers, and every result is compared with the true sum.

    Raises:
        ArithmeticError: a peer's sum is wrong.
    """
    rank, size = ah.get_rank(), ah.get_world_size()
    length = max(nbytes // 4, 1)
    bases = [np.random.default_rng(one).integers(-9, 9, length) for one in range(size)]
    mine = bases[rank].astype(np.float32)
    total: Vector = np.sum(bases, axis=0).astype(np.float32)
    del bases
    x = np.empty_like(mine)
    times: dict[str, list[float]] = {peer.name: [] for peer in peers}
    rounds, number = _MOST_ROUNDS, 0
    while number < rounds:
        scale = np.float32(number % 7 + 1)  # small whole numbers: float32 sums are exact
        for peer in peers:
            np.multiply(mine, scale, out=x)
            ah.barrier()
            begun = time.perf_counter()
            peer.all_reduce(x)
            times[peer.name].append(time.perf_counter() - begun)
            if not np.array_equal(x, total * scale):
                raise ArithmeticError(f"{peer.name} summed {nbytes} bytes wrongly in {number}")
        number += 1
        if number == 2:
            rounds = _agreed_rounds(sum(series[1] for series in times.values()))
    return {name: series[1:] for name, series in times.items()}  # the first one warms up


def _agreed_rounds(seconds: float) -> int:
    """Settle how many rounds fit, by the slowest rank's word."""
    slowest = np.array([seconds])
    ah.all_reduce(slowest, ah.ReduceOp.MAX)
    fitting = int(_SECONDS_PER_SIZE / max(float(slowest[0]), 1e-6))
    return min(max(fitting, _FEWEST_ROUNDS), _MOST_ROUNDS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sizes", required=True, help="bytes, comma-separated")
    parser.add_argument("--vs", default="", help="peers, comma-separated")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    ah.init_process_group()
    peers: list[Peer] = [Allhands()]
    peers += [PEERS[name]() for name in arguments.vs.split(",") if name]
    rows = []
    for nbytes in (int(size) for size in arguments.sizes.split(",")):
        for name, series in measure(peers, nbytes).items():
            tenths = statistics.quantiles(series, n=10)
            rows.append(
                {
                    "operation": "all_reduce",
                    "ranks": ah.get_world_size(),
                    "bytes": nbytes,
                    "peer": name,
                    "median": statistics.median(series),
                    "low": tenths[0],
                    "high": tenths[-1],
                    "rounds": len(series),
                }
            )
    if ah.get_rank() == 0:
        arguments.out.write_text(json.dumps(rows))
    for peer in peers:
        peer.close()
    ah.destroy_process_group()


if __name__ == "__main__":
    main()
