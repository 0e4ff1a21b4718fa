"""Conversation of a rank with its daemon and its peer, in words that older versions know too.

It runs under the recorded version, and imports nothing of these tests.
"""

import numpy as np

import allhands as ah


def main() -> None:
    """Be one of two ranks."""
    ah.init_process_group()
    rank = ah.get_rank()
    sums = np.ones(4)
    ah.all_reduce(sums)
    ah.new_group([0, 1])
    ah.barrier()
    ah.monitored_barrier()
    with ah.connect() as control:
        if rank == 0:
            control.put("k", "v")
        control.wait(["k"])
        assert control.get("k") == b"v"
        control.add(f"n{rank}", 3)
        control.barrier("b", f"p{rank}", ["p0", "p1"])
        assert len(control.members()) == 2
    ah.destroy_process_group()
    assert sums.tolist() == [2.0] * 4


main()
