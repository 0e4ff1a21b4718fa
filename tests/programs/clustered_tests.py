"""A test with processes as ranks, which call a function of this module.

`test_pytest_plugin` runs this file; pytest does not collect it by this name.
"""

import os

import allhands as ah


def where():
    ah.barrier()
    return os.getpid()


def test_processes(local_cluster):
    pids = local_cluster(2).run(where)
    assert len({os.getpid(), *pids}) == 3
