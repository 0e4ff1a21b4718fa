"""Locks, semaphores, elections and double barriers, made of keys, leases and watches.

A recipe is written once, as a generator of steps; `BlockingDriver` carries them out for threads,
`allhands.aio` for tasks.
"""
