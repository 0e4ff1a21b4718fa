"""The mutations: for each row of the parity table a change that breaks its behaviour.

One that fits no longer has to be written anew, as the line that it replaces was; see `run`.
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
