"""Files with copies of the ranks' output."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def open_tee_files(directory: Path, ranks: Iterable[int]) -> Iterator[Mapping[int, int]]:
    """Open `rank-K.log` in `directory` for each rank; give their descriptors, by rank.

    Raises:
        FileExistsError: one of them exists already; then none was made.
        OSError: the directory or a file cannot be made.
    """
    directory.mkdir(parents=True, exist_ok=True)
    paths = {rank: directory / f"rank-{rank}.log" for rank in ranks}
    if taken := [str(path) for path in paths.values() if path.exists()]:
        raise FileExistsError(f"{', '.join(taken)} of an earlier run would be overwritten")
    with ExitStack() as stack:
        files = {rank: stack.enter_context(path.open("xb")) for rank, path in paths.items()}
        yield {rank: file.fileno() for rank, file in files.items()}
