"""Two ranks of an installation as it is published: sums over its native core, or an error."""

import sys

import numpy as np

import allhands as ah

ah.init_process_group(backend="shm")
for length in (1, 1 << 20):
    x = np.full(length, ah.get_rank() + 1.0)
    ah.all_reduce(x)
    assert ah.get_world_size() == 2
    assert (x == 3.0).all()
if ah.get_rank() == 0:
    print(
        f"two ranks agree: Python {sys.version.split()[0]}, NumPy {np.__version__}, {ah.__file__}"
    )
ah.destroy_process_group()
