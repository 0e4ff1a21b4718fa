"""The rows of the parity table: behaviours on which users of c10d rely, by number.

A test that proves a row is named after it, `test_p017_...`, wherever it is: in a folder `pytorch`
on the PyTorch face, else on the native one. Rows that need autograd, a compiler or a tensor hold on
the PyTorch face alone.

    PYTHONPATH=tests python -m support.parity.rows

writes the table anew where tests of the PyTorch face have come or gone.
"""

import ast
import functools
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from support.seeds import record as seeds

TESTS = Path(__file__).parents[2]
TABLE = TESTS.parent / "docs" / "parity.md"

ROWS = {
    1: "joining by env:// leaves the handlers of the root logger alone",
    2: "a get of a key that nobody sets ends in a timeout after the store's own",
    3: "stores in a file, over TCP, in memory, behind a prefix, and of a fake world",
    4: "the default timeout of a group can be read and set",
    5: "futures that overlap; a process has one listener, and no list of devices is taken",
    6: "broadcast: checks of root, root array, types and sizes",
    7: "allreduce: checks of empty lists, types and sizes",
    8: "allreduce_coalesced: checks of empty lists, types and layouts",
    9: "allreduce_coalesced: check of the device; CUDA's tensors, which Gloo refuses, are staged",
    10: "sparse allreduce: checks of lists, layouts, sizes and operations; MIN and MAX, which c10d "
    "refuses, are defined on arrays: what is not stored is zero",
    11: "allgather: checks of lists, their lengths, types and sizes",
    12: "allgather_coalesced: checks of sizes, types, lists and nesting",
    13: "reduce: checks of root, root array and number of arrays",
    14: "different dtypes in one call are refused by every collective that takes several arrays",
    15: "all_to_all_single refuses what is not contiguous",
    16: "broadcast of arrays without elements",
    17: "broadcast from every root, of several arrays, and in its short form",
    18: "1,000 broadcasts outstanding",
    19: "broadcast in place from each root",
    20: "allreduce with every operation, of several arrays, and in its short form",
    21: "all_reduce as it is by default",
    22: "1,000 allreduces outstanding",
    23: "allreduce_coalesced with SUM, PRODUCT, MIN and MAX",
    24: "1,000 of them outstanding; their futures waited for together",
    25: "sparse allreduce of one and two arrays a rank; input and result both hold it",
    26: "reduce with every operation to every root",
    27: "1,000 reduces outstanding, to every root",
    28: "gather to every root, which alone gives a list",
    29: "gather of what is not contiguous",
    30: "1,000 gathers outstanding",
    31: "scatter from every root, which alone gives a list",
    32: "1,000 scatters outstanding",
    33: "allgather of one to three arrays a rank",
    34: "allgather of what is not contiguous",
    35: "1,000 allgathers outstanding",
    36: "all_gather_coalesced, also with futures, and of one rank",
    37: "allgather_into_tensor_coalesced",
    38: "reduce_scatter of lists with SUM and AVG",
    39: "reduce_scatter_tensor with a future",
    40: "reduce_scatter_tensor_coalesced",
    41: "all_to_all of lists",
    42: "all_to_all_single with sizes as arrays, as lists, and without",
    43: "every collective in a world of one",
    44: "all_gather of complex numbers, also with real buffers of as many bytes among complex ones",
    45: "booleans: broadcast and reductions",
    46: "a barrier ends after the calls before it",
    47: "monitored_barrier names who does not come",
    48: "a round robin over several groups, made and destroyed again and again",
    49: "broadcast_object_list",
    50: "broadcast_coalesced of mixed dtypes in small buffers from each root",
    51: "send and receive between all pairs, with tags, and is_completed",
    52: "waiting for work in traced and compiled code",
    53: "two groups without a common rank reduce at the same time",
    54: "a group is used from a thread that is no rank",
    55: "a rank that is not in the group gets a warning that names the call",
    56: "ranks of groups from ranks of the world, and back; who is not in one, what is no group",
    57: "groups that only their members make; equal ones are different groups",
    58: "sequence numbers: equal at first, one more with each call, different where a rank lags",
    59: "groups given as ranks, lists of ranks, groups, meshes, and dimensions of meshes",
    60: "equal ranks and tag are the same group, without a tag another one each time",
    61: "groups found by tag, found or made, and their root",
    62: "functional broadcast on a mesh",
    63: "functional all_reduce on a mesh, and on one dimension of it",
    64: "functional forms of coalesced calls",
    65: "functional all_gather_tensor along any dimension",
    66: "functional reduce_scatter_tensor along any dimension, and coalesced",
    67: "shapes are inferred on the meta device",
    68: "gradients of the functional all_reduce",
    69: "the graph of a traced all_reduce",
    70: "functional all_to_all_single with uneven splits",
    71: "torch.compile of functional calls",
    72: "permute_tensor on a dimension of a mesh",
    73: "gradients of all_to_all_single, also compiled",
    74: "gradients of all_gather_tensor and reduce_scatter_tensor",
    75: "a backward pass sees the group of its forward pass",
    76: "threads as ranks: what one rank raises surfaces, and the others are released",
    77: "threads as ranks: a skip is a skip",
    78: "threads as ranks: equal, or not, to what one rank has",
    79: "data-parallel training equals training in one process",
    80: "parameters that are unused on some ranks, or on all; bucket views; static graphs",
    81: "looking for unused parameters where there are none",
    82: "output that is not used for training, with and without unused parameters",
    83: "parameters that are left out of the averaging",
    84: "sparse gradients",
    85: "a comm hook returns a future; also of sparse gradients",
    86: "comm hooks are checked: callable, annotations, what they return, once only",
    87: "buckets hold one dtype",
    88: "prepared for forward and backward; unused parameters; a loop with an optimizer",
    89: "Join: main hooks shadow the collectives of others",
    90: "Join: post hooks know who was last",
    91: "Join: several joinables",
    92: "Join: disabled",
    93: "Join: throws on early termination, with the texts",
    94: "Join: named arguments reach the hooks",
    95: "a fake world: any rank of any size in one process",
    96: "a fake world: FSDP, tensor parallel, and traced",
    97: "a store-based barrier that times out says who joined",
    98: "backends are registered by name and for devices",
    99: "buckets by size: which gradient goes where",
    100: "ReduceOp: isinstance, copies, pickles, equality, the factor of PREMUL_SUM",
    101: "the rank of a process on its node",
    102: "send to itself, and both kinds of rank given, are refused",
    103: "destroying groups ends and aborts them",
    104: "data-parallel training with shared weights, checkpoints, PowerSGD",
    105: "new_group is made by the world of the default group; PyTorch would hand over to a method "
    "`new_group` of that group, which is left out, since tags and descriptions would be lost",
    106: "joining with every backend; a group's rank, size and name",
    107: "the label of a call is recorded: `label=`, and `record_comm` on arrays and tensors",
    108: "isend, irecv and batches of them",
    109: "object collectives and messages",
    110: "AVG of complex numbers",
    111: "receiving from any rank, and from which it was",
    112: "split and shrunk groups, on tensors by PyTorch's own `split_group` and `shrink_group`",
    113: "meshes: by name, sliced, flattened, local ranks",
    114: "Work: wait, completed, success, exception, result, future, source, synchronize",
    115: "stores: add, compare_set, append, many at once, queues, lists, deletes, check, wait",
    116: "leaving and joining again in one process",
    117: "half, PowerSGD, post-local SGD and other hooks",
    118: "unmodified PyTorch programs",
    119: "ranks from the environment of launchers",
    120: "buffers and objects as mpi4py has them",
}

TORCH_ONLY = frozenset({52, 67, 68, 69, 71, 73, 74, 75, 96, 98, 118})
"""They make no sense without PyTorch's devices, autograd, compiler or registry."""
NATIVE_ONLY = frozenset({120})
"""They make no sense with PyTorch's tensors."""
LATER = frozenset({120})
"""Not claimed yet."""

NATIVE, TORCH = "native", "torch"
Proofs = dict[int, list[str]]


def _mutations() -> dict[int, str]:
    from mutations import seen  # which asks here for the tests of rows

    return seen.cells(ROWS)


COLUMNS: dict[str, Callable[[], dict[int, str]]] = {
    "seeds": seeds.cells,
    "mutations noticed": _mutations,
}
"""Further columns, each from a record of its own: what they say of each row, by its number."""


@functools.cache
def proofs(face: str = NATIVE) -> Proofs:
    """Return the tests of each row on a face, as `file::name` or `file::class::name`.

    They are read, not imported: without PyTorch too it is known what is proven with it.
    """
    found: defaultdict[int, list[str]] = defaultdict(list)
    for path in sorted(TESTS.rglob("test_*.py")):
        if ("pytorch" in path.parent.parts) is not (face == TORCH):
            continue
        for name in _tests(ast.parse(path.read_text()).body, ""):
            row = name.rpartition("::")[2][6:9]
            if row.isdigit():
                found[int(row)].append(f"{path.relative_to(TESTS)}::{name}")
    return dict(found)


def table(outcomes: dict[str, str]) -> str:
    """Return the table, given how each test of the native face ended."""
    native, torch = proofs(), proofs(TORCH)
    lines = [
        "# Parity with c10d",
        "",
        "What users of `torch.distributed` count on, and which tests prove it: on NumPy arrays,",
        "and on the PyTorch face. Written by a run of the former (`make tables`); the latter are",
        "those of `make test-torch`. A test fails where a row has lost its proof.",
        "",
        seeds.counts(),
        "In their column, whose letters [seeds.md](seeds.md) explains: ✓ passes over allhands,",
        "✗ fails, · is skipped, and why. † calls a helper that the listing lacks.",
        "",
        "The last column says what was broken on purpose, thing by thing, and a test of the row",
        "noticed: `make mutations`, which takes its time and is run on demand.",
        "",
        f"| row | behaviour | result | tests | PyTorch face | {' | '.join(COLUMNS)} |",
        "|---" * (5 + len(COLUMNS)) + "|",
    ]
    further = [cells() for cells in COLUMNS.values()]
    for row, title in ROWS.items():
        tests = native.get(row, [])
        lines.append(
            f"| P{row} | {title} | {_result(row, tests, outcomes)} | {_names(tests)} "
            f"| {_names(torch.get(row, []))} | {' | '.join(one.get(row, '') for one in further)} |"
        )
    return "\n".join(lines) + "\n"


def told() -> dict[int, tuple[str, list[str], list[str]]]:
    """Return the table's contents: the result of each row, and the tests on either face."""
    found = {}
    for line in TABLE.read_text().splitlines():
        if line.startswith("| P"):
            row, _, result, *faces = (cell.strip() for cell in line.split("|")[1:6])
            names = [[one.strip("`") for one in cell.split("<br>") if one] for cell in faces]
            found[int(row[1:])] = (result, names[0], names[1])
    return found


def refreshed() -> str:
    """Return the table with all columns up to date except the run of the native tests."""
    return table({test: result for result, tests, _ in told().values() for test in tests})


def refresh() -> None:
    TABLE.write_text(refreshed())


def _tests(body: list[ast.stmt], within: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _tests(node.body, f"{within}{node.name}::")
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith(
            "test_p"
        ):
            yield within + node.name


def _names(tests: list[str]) -> str:
    return "<br>".join(f"`{one}`" for one in tests)


def _result(row: int, tests: list[str], outcomes: dict[str, str]) -> str:
    if row in TORCH_ONLY:
        return "PyTorch face only"
    if row in LATER:
        return "not yet"
    ended = {outcomes.get(one, "not run") for one in tests} or {"no test"}
    return "passed" if ended == {"passed"} else ", ".join(sorted(ended))


if __name__ == "__main__":
    refresh()
