"""LightGBM over allhands: each rank has rows of its own, all get the same trees.

allhands run -n 2 examples/on_lightgbm.py
"""

import hashlib

import lightgbm
import numpy as np

import allhands as ah
import allhands.lightgbm


def main() -> None:
    ah.init_process_group()
    rank, size = ah.get_rank(), ah.get_world_size()
    random = np.random.default_rng(0)
    x = random.normal(size=(4000, 8))
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(float)
    parameters = {"objective": "binary", "tree_learner": "data", "verbose": -1, "num_threads": 1}
    with allhands.lightgbm.network() as network:
        data = lightgbm.Dataset(x[rank::size], y[rank::size])
        booster = lightgbm.train({**parameters, **network}, data, 20)
    trees = booster.model_to_string().partition("parameters:")[0]
    accuracy = np.mean((booster.predict(x) > 0.5) == y)
    digest = hashlib.sha256(trees.encode()).hexdigest()[:16]
    print(f"rank {rank} of {size}: trees {digest}, right in {accuracy:.3f}")
    ah.destroy_process_group()


if __name__ == "__main__":
    main()
