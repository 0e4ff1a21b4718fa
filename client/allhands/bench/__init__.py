"""Benchmarks against Gloo and MPI: interleaved in one run, results checked.

One driver (`driver`) starts a pool of rank processes for every system (`launchers`, `rank_pool`)
and interleaves the trials (`interleaving`). Idle processes of a pool (`rank`) sleep in a read from
the driver, so that none spins beside the measured system. They run under the system's own Python,
and import nothing of allhands but modules of this package (`ipc`, `start_gate`, `case`, `data`,
`systems`).
"""
