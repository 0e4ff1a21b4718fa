"""DistributedSampler: each rank's share of the indices of a data set, anew for each epoch."""

from collections.abc import Iterator, Sized

import numpy as np
import numpy.typing as npt

from allhands.api.world_queries import get_rank, get_world_size


class DistributedSampler:
    """This rank's share of the indices of a data set, as the class of that name in torch.

        sampler = ah.DistributedSampler(images)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for at in sampler:
                train(images[at])

    All ranks shuffle alike, and take every so many of the indices, each from its own rank on. All
    have equally many: where the indices cannot be shared out evenly, the first of them are taken
    again at the end, or with `drop_last` the last of them by nobody. The permutations are NumPy's,
    and other than those of torch with the same seed.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        """Share out the indices of a data set; sends nothing.

        Args:
            dataset: anything with a length.
            num_replicas: number of shares; None: the size of the world.
            rank: which share this is; None: this process's rank in the world.
            shuffle: another order in each epoch; else ascending indices.
            seed: same on all ranks, at least 0.
            drop_last: leave indices out at the end, rather than repeat the first.

        Raises:
            ValueError: `rank` is not below `num_replicas`, or a number is negative.
            RuntimeError: a number is not given, and `init_process_group` has not been called.
        """
        if num_replicas is None:
            num_replicas = get_world_size()
        if rank is None:
            rank = get_rank()
        if not 0 <= rank < num_replicas:
            raise ValueError(
                f"rank must be from 0 to num_replicas - 1, {num_replicas - 1}, not {rank}"
            )
        if seed < 0:
            raise ValueError(f"seed must not be negative: {seed}")
        self.dataset = dataset
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last
        self.epoch = 0
        length = len(dataset)
        self.num_samples = length // num_replicas if drop_last else -(-length // num_replicas)
        """Length of each share."""
        self.total_size = self.num_samples * num_replicas
        """Length of all shares together."""

    def __iter__(self) -> Iterator[int]:
        """Return the indices of this rank's share in this epoch."""
        length = len(self.dataset)
        indices = (
            np.random.default_rng(self.seed + self.epoch).permutation(length)
            if self.shuffle
            else np.arange(length)
        )
        share = take_share(indices, self.total_size, self.num_replicas, self.rank)
        return iter(share.tolist())

    def __len__(self) -> int:
        """Return the number of indices of this rank's share."""
        return self.num_samples

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which with `seed` determines the order; before iterating, on all ranks."""
        self.epoch = epoch


def take_share(
    indices: npt.NDArray[np.int64], total_size: int, num_replicas: int, rank: int
) -> npt.NDArray[np.int64]:
    """Return a rank's share of indices, which are first repeated, or cut, to `total_size`."""
    return np.resize(indices, total_size)[rank::num_replicas]
