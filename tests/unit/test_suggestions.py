"""Names that do not exist: the errors say which one was meant, and probing is not disturbed."""

import copy
import inspect
import pickle
import subprocess
import sys

import pytest

import allhands as ah
from allhands.collectives.reduction import parse_op
from allhands.suggestions import OP_HABITS, PUBLIC_HABITS


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("allreduce", "all_reduce"),
        ("Allreduce", "all_reduce"),
        ("bcast", "broadcast"),
        ("Bcast", "broadcast"),
        ("Allgather", "all_gather"),
        ("Alltoallv", "all_to_all_v"),
        ("all_gather_tensor", "all_gather_into_tensor"),
        ("Barrier", "barrier"),
        ("Sendrecv", "batch_isend_irecv"),
        ("COMM_WORLD", "group.WORLD"),
        ("Get_rank", "get_rank"),
        ("Get_size", "get_world_size"),
        ("reduceop", "ReduceOp"),
        ("init_proces_group", "init_process_group"),
    ],
)
def test_habits_and_typing_errors_are_told_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(AttributeError) as raised:
        getattr(ah, name)
    assert str(raised.value) == f"allhands has no {name!r}. Did you mean {meant!r}?"
    assert raised.value.name == name


def test_what_is_like_nothing_gets_no_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"^allhands has no 'zebra'$"):
        ah.zebra  # type: ignore[attr-defined]  # noqa: B018


def test_modules_that_are_not_imported_are_told_from_names_that_do_not_exist() -> None:
    script = (
        "import allhands as ah\n"
        "try: ah.errors\n"
        "except AttributeError as error: print(error)\n"
        "from allhands import errors\n"
        "print(ah.errors is errors)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [
        "allhands.errors is a module that is not imported yet: import allhands.errors",
        "True",
    ]


def test_a_traceback_has_one_suggestion() -> None:
    script = "import allhands as ah\nah.allreduce"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last == "AttributeError: allhands has no 'allreduce'. Did you mean 'all_reduce'?"
    script = "import allhands as ah\nah.ReduceOp.PROD"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last == "AttributeError: ReduceOp has no 'PROD'. Did you mean 'PRODUCT'?"


def test_an_import_that_looks_for_modules_compares_no_names() -> None:
    script = (
        "import sys, allhands\n"
        "from allhands import config\n"
        "hasattr(allhands, '__wrapped__'), hasattr(allhands, '_x')\n"
        "print('difflib' in sys.modules)\n"
        "from allhands import *\n"
        "assert all_reduce and ReduceOp and config\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_probing_finds_what_is_there_and_nothing_else() -> None:
    assert not hasattr(ah, "allreduce")
    assert hasattr(ah, "all_reduce")
    assert getattr(ah, "bcast", None) is None
    assert inspect.unwrap(ah.ReduceOp) is ah.ReduceOp
    assert not hasattr(ah.ReduceOp, "PROD")
    assert inspect.getdoc(ah.ReduceOp)
    for op in (ah.ReduceOp.SUM, ah.ReduceOp.premul_sum(2)):
        assert copy.deepcopy(op) == op
        assert copy.copy(op) == op
    assert pickle.loads(pickle.dumps(ah.ReduceOp.AVG)) is ah.ReduceOp.AVG  # noqa: S301 - just made
    assert ah.ReduceOp["MAX"] is ah.ReduceOp.MAX


@pytest.mark.parametrize(
    ("name", "meant"),
    [("PROD", "PRODUCT"), ("MEAN", "AVG"), ("Sum", "SUM"), ("maximum", "MAX"), ("XOR", "LXOR")],
)
def test_operations_of_other_libraries_are_told_what_they_are_called(name: str, meant: str) -> None:
    if name != "maximum":
        with pytest.raises(AttributeError, match=f"has no '{name}'. Did you mean '{meant}'"):
            getattr(ah.ReduceOp, name)
    else:
        with pytest.raises(AttributeError, match=r"^ReduceOp has no 'maximum'$"):
            getattr(ah.ReduceOp, name)


def test_operations_may_be_given_by_name_and_wrong_names_are_told_what_was_meant() -> None:
    assert parse_op("sum") is ah.ReduceOp.SUM
    assert parse_op("Product") is ah.ReduceOp.PRODUCT
    with pytest.raises(ValueError, match=r"not 'prod'\. Did you mean 'PRODUCT'"):
        parse_op("prod")
    with pytest.raises(ValueError, match=r"not 'user'$"):
        parse_op("user")


@pytest.mark.parametrize("name", ["gloo", "nccl", "mpi", "Gloo", "cpu:gloo,cuda:nccl"])
def test_backends_of_torch_are_told_to_be_left_out(name: str) -> None:
    wanted = "is a backend of torch.distributed, .* call init_process_group.. without it"
    with pytest.raises(ValueError, match=wanted):
        ah.init_process_group(name)
    with pytest.raises(ValueError, match=wanted):
        ah.init_process_group(backend=name)


def test_an_own_backend_in_the_wrong_place_is_told_where_to_go() -> None:
    with pytest.raises(
        ValueError, match=r"'shm' is a backend: init_process_group\(backend='shm'\)"
    ):
        ah.init_process_group("shm")


def test_the_tables_of_habits_name_what_exists() -> None:
    for habit, name in PUBLIC_HABITS.items():
        assert habit == habit.lower()
        assert habit not in dir(ah)
        first, *rest = name.split(".")
        found = getattr(ah, first)
        assert not rest or hasattr(found, *rest)
    assert {*OP_HABITS.values()} <= {*ah.ReduceOp.__members__}
