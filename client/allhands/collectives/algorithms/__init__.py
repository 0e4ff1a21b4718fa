"""Collectives as pure functions: `(rank, size, ...) -> Schedule`, one family of algorithms a file.

Lists of arrays are addressed end to end: block i of a list with `counts` elements per array is
[sum(counts[:i]), sum(counts[:i + 1])). Every rank gives the same arguments but its own rank, and
all of them list the same number of rounds. Empty transfers are listed like any other: their
messages carry the signature of the call, so ranks that disagree find out without data, too.
"""
