"""What a table of the benchmark asks for. Pure, and light to import: options list the tables."""

from dataclasses import dataclass

from allhands.bench.case import WHOLE_JOBS, BenchCase, list_cases


@dataclass(frozen=True, slots=True)
class TwoHosts:
    """Two hosts, made of network namespaces."""

    rate: str | None
    """What the cable between them carries, in the syntax of tc; None: no limit."""
    ranks_per_host: int = 1


@dataclass(frozen=True, slots=True)
class TableRequest:
    """Cases to measure in one run, and by whom."""

    operations: tuple[str, ...]
    ranks: tuple[int, ...]
    sizes: tuple[int, ...]
    dtypes: tuple[str, ...] = ("float32",)
    hosts: TwoHosts | None = None

    def list_cases(self, ranks: int) -> list[BenchCase]:
        kept = [one for one in self.operations if one not in WHOLE_JOBS]
        return list_cases(kept, ranks, list(self.sizes), list(self.dtypes))

    def count_steps(self) -> int:
        """Return how many things are measured, one after the other."""
        jobs = len(self.ranks) * ("start_up" in self.operations) + ("sessions" in self.operations)
        return jobs + sum(len(self.list_cases(ranks)) for ranks in self.rank_counts)

    @property
    def rank_counts(self) -> tuple[int, ...]:
        return (2 * self.hosts.ranks_per_host,) if self.hosts is not None else self.ranks
