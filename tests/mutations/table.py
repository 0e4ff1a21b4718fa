"""The mutations: for each row of the parity table, changes that break the row's behaviour.

A mutation whose quoted line was rewritten has to be rewritten too; see `run`.
"""

from typing import Final

from mutations.areas import checks, further, groups, parallel, results

MUTATIONS: Final = (
    *checks.MUTATIONS,
    *results.MUTATIONS,
    *groups.MUTATIONS,
    *parallel.MUTATIONS,
    *further.MUTATIONS,
)
