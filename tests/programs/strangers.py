"""Ranks that hold their ports open while strangers come."""

import numpy as np
import psutil

import allhands as ah
from programs.protocol import hear, tell


def hold_ports() -> None:
    """Tell the listening ports, and sum over links after each line of the test."""
    ah.init_process_group(timeout=60)
    listening = [
        one.laddr.port
        for one in psutil.Process().net_connections("tcp")
        if one.status == psutil.CONN_LISTEN
    ]
    tell("listening", ports=listening)
    while hear() != "end":
        x = np.ones(100_000)
        ah.all_reduce(x)
        tell("summed", sum=x[0])
    ah.destroy_process_group()
