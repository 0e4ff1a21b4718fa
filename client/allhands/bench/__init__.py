"""Benchmarks beside peers: interleaved in one run, checked in the same run.

One driver (`driver`) starts one crew of rank processes for every contender (`launches`, `crew`)
and gives them their turns (`turns`). The processes of a crew (`rank`) sleep in a read from the
driver until it is their turn, so that nobody spins beside the one who is measured. They run under
the Python that has the peer, and import nothing of allhands but what this package gives them
(`wire`, `gate`, `cell`, `data`, `contenders`).
"""
