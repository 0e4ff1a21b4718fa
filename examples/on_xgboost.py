"""XGBoost with the ranks of a world: no tracker to start, no addresses to hand out.

allhands run -n 2 examples/on_xgboost.py
"""

import hashlib

import numpy as np
import xgboost

import allhands as ah
import allhands.xgboost


def main() -> None:
    ah.init_process_group()
    rank, size = ah.get_rank(), ah.get_world_size()
    random = np.random.default_rng(0)
    x = random.normal(size=(4000, 8))
    y = (x[:, 0] * x[:, 1] + x[:, 2] > 0).astype(float)
    with allhands.xgboost.open_communicator():
        data = xgboost.DMatrix(x[rank::size], y[rank::size])
        booster = xgboost.train({"tree_method": "hist", "nthread": 1, "max_depth": 4}, data, 20)
    accuracy = np.mean((booster.predict(xgboost.DMatrix(x)) > 0.5) == y)
    digest = hashlib.sha256(bytes(booster.save_raw())).hexdigest()[:16]
    print(f"rank {rank} of {size}: trees {digest}, right in {accuracy:.3f}")
    ah.destroy_process_group()


if __name__ == "__main__":
    main()
