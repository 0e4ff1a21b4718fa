"""Suggestions for names that do not exist: the nearest one, or what other libraries' names mean."""

from collections.abc import Iterable, Mapping
from importlib.util import find_spec

_LEAST_LIKENESS = 0.7
"""Ratio of `difflib` from which a name is suggested; "allreduce" and "all_reduce" have 0.95."""

PUBLIC_HABITS = {
    "alltoall": "all_to_all",
    "alltoallv": "all_to_all_v",
    "bcast": "broadcast",
    "comm_world": "group.WORLD",
    "comm_rank": "get_rank",
    "comm_size": "get_world_size",
    "finalize": "destroy_process_group",
    "get_local_rank": "get_node_local_rank",
    "get_size": "get_world_size",
    "groupmember": "group",
    "grouped_allreduce": "all_reduce_coalesced",
    "init": "init_process_group",
    "local_rank": "get_node_local_rank",
    "node_rank": "get_node_local_rank",
    "op": "ReduceOp",
    "rank": "get_rank",
    "request": "Work",
    "sendrecv": "batch_isend_irecv",
    "shutdown": "destroy_process_group",
    "size": "get_world_size",
    "split": "split_group",
    "sum": "ReduceOp.SUM",
    "world": "group.WORLD",
    "world_size": "get_world_size",
}
"""Names of torch, MPI and Horovod, in lower case, and those of the package."""

_FOREIGN_BACKENDS = frozenset({"gloo", "hccl", "mpi", "nccl", "ucc", "xccl"})

OP_HABITS = {
    "add": "SUM",
    "and": "LAND",
    "average": "AVG",
    "mean": "AVG",
    "or": "LOR",
    "prod": "PRODUCT",
    "xor": "LXOR",
}
"""Names of reductions elsewhere, in lower case, and those of `ReduceOp`."""


def suggest(name: str, known: Iterable[str], habits: Mapping[str, str]) -> str:
    """Return " Did you mean 'all_reduce'?" for a name that is not known; "": nothing is near.

    Case does not count.
    """
    import difflib  # only where an error is made

    by_lower = {one.lower(): one for one in known}
    lower = name.lower()
    found = habits.get(lower) or by_lower.get(lower)
    if found is None:
        near = difflib.get_close_matches(lower, by_lower, n=1, cutoff=_LEAST_LIKENESS)
        if not near:
            return ""
        found = by_lower[near[0]]
    return f" Did you mean {found!r}?"


def describe_foreign_backend(name: str, own: Iterable[str]) -> str:
    """Return what to do with the name of a backend where something else is wanted; "": none."""
    if name in own:
        return f"; {name!r} is a backend: init_process_group(backend={name!r})"
    parts = {part.rpartition(":")[2].lower() for part in name.split(",")}
    if not parts <= _FOREIGN_BACKENDS:
        return ""
    return (
        f"; {name!r} is a backend of torch.distributed, and this package has its own: call "
        "init_process_group() without it"
    )


def make_public_name_error(name: str, public: Iterable[str]) -> AttributeError:
    """Make the error of an attribute that the package does not have."""
    # First, as imports of modules ask for it: what follows takes a hundred times as long.
    if not name.startswith("_") and find_spec(f"allhands.{name}") is not None:
        text = f"allhands.{name} is a module that is not imported yet: import allhands.{name}"
        return AttributeError(text, name=name, obj=None)
    return make_attribute_error("allhands", name, public, PUBLIC_HABITS)


def make_attribute_error(
    owner: str, name: str, known: Iterable[str], habits: Mapping[str, str]
) -> AttributeError:
    """Make the error of an attribute that does not exist, with a suggestion."""
    hint = "" if name.startswith("_") else suggest(name, known, habits)
    # With an object Python would add its own suggestion, a second one, in tracebacks.
    return AttributeError(
        f"{owner} has no {name!r}" + (f".{hint}" if hint else ""), name=name, obj=None
    )
