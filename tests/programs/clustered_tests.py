"""A test whose ranks are processes that call a function of its module. Not collected by name."""

import os

import allhands as ah


def where():
    ah.barrier()
    return os.getpid()


def test_processes(local_cluster):
    pids = local_cluster(2).run(where)
    assert len({os.getpid(), *pids}) == 3
