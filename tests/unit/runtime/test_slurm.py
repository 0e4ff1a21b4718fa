"""SLURM's variables about the nodes of a step."""

from collections.abc import Mapping

import pytest

from allhands.runtime.slurm import count_nodes, expand_nodelist, find_first_node


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("head", ["head"]),
        ("a,b", ["a", "b"]),
        ("node[01-03,07]", ["node01", "node02", "node03", "node07"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("node[098-101]", ["node098", "node099", "node100", "node101"]),
        ("gpu-[1,3].site,login", ["gpu-1.site", "gpu-3.site", "login"]),
        ("rack[0-1]n[1-2]", ["rack0n1", "rack0n2", "rack1n1", "rack1n2"]),
        ("10.77.0.[1-2]", ["10.77.0.1", "10.77.0.2"]),
    ],
)
def test_a_compressed_list_names_every_node_in_order(text: str, names: list[str]) -> None:
    assert list(expand_nodelist(text)) == names


@pytest.mark.parametrize("text", ["node[1-", "node]1", "node[a-b]", "node[3-1]", "a,,b", "n[]"])
def test_a_malformed_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        list(expand_nodelist(text))


def test_a_long_list_is_not_expanded_to_find_its_first_node() -> None:
    environ = {"SLURM_JOB_NODELIST": "n[0-999999999999]"}
    assert find_first_node(environ) == ("SLURM_JOB_NODELIST", "n0")
    assert count_nodes(environ) == 2


@pytest.mark.parametrize(
    ("environ", "count", "first"),
    [
        ({}, 0, ("", "")),
        ({"SLURM_NNODES": "3"}, 3, ("", "")),
        ({"SLURM_JOB_NODELIST": "n[1-4]"}, 2, ("SLURM_JOB_NODELIST", "n1")),
        ({"SLURM_JOB_NODELIST": "n1"}, 1, ("SLURM_JOB_NODELIST", "n1")),
        (
            {
                "SLURM_NNODES": "4",
                "SLURM_JOB_NODELIST": "n[1-4]",
                "SLURM_STEP_NUM_NODES": "1",
                "SLURM_STEP_NODELIST": "n3",
            },
            1,
            ("SLURM_STEP_NODELIST", "n3"),
        ),
    ],
)
def test_the_step_goes_before_its_job(
    environ: Mapping[str, str], count: int, first: tuple[str, str]
) -> None:
    assert (count_nodes(environ), find_first_node(environ)) == (count, first)


@pytest.mark.parametrize(
    "environ", [{"SLURM_NNODES": "two"}, {"SLURM_JOB_NODELIST": "n[1-"}, {"SLURM_NODELIST": ","}]
)
def test_nonsense_is_refused_by_the_name_of_its_variable(environ: dict[str, str]) -> None:
    [name] = environ
    with pytest.raises(ValueError, match=name):
        count_nodes(environ)
