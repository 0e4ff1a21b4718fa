"""The smallest job, `allhands run -n 4 examples/hello.py`: every rank sees the sum of all."""

import numpy as np

import allhands as ah


def main() -> None:
    ah.init_process_group(timeout=300)  # hosts may begin minutes apart
    rank, size = ah.get_rank(), ah.get_world_size()
    total = np.array([rank], dtype=np.int64)
    ah.all_reduce(total)
    print(f"hello from rank {rank} of {size}: all ranks add up to {total[0]}", flush=True)
    if rank == 0:
        print(ah.status(), flush=True)
    ah.barrier()
    ah.destroy_process_group()


if __name__ == "__main__":
    main()
