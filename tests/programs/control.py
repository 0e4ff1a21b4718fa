"""Clients of a coordinator outside any world."""

import os
from unittest import mock

import allhands as ah
from programs.protocol import tell


def wait_for_a_key() -> None:
    control = ah.connect()
    control.put("n", b"1")
    with mock.patch.object(control, "_stub", None):  # calls take the fast port, or fail
        try:
            tell("waiting")
            control.get("never", wait=True, timeout=100)
        except KeyboardInterrupt:
            tell("interrupted", n=control.add("n", 1))


def count_in_parent_and_child() -> None:
    control = ah.connect()
    control.put("n", b"0")
    with mock.patch.object(control, "_stub", None):  # calls take the fast port, or fail
        child = os.fork()
        mine = "parent" if child else "child"
        is_right = all(control.add(mine, 1) == one for one in range(1, 201))
    if child == 0:
        os._exit(0 if is_right else 1)
    tell("parent", is_right=is_right)
    tell("child", status=os.waitpid(child, 0)[1])
