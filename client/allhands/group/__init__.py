"""Groups of ranks: collectives, point-to-point, recovery, submission of calls.

As `allhands.group` it is also the namespace that torch.distributed has: `group.WORLD` is the group
of all ranks, None where this process or thread is in no world.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from allhands.group.group import Group

    WORLD: Group | None
else:

    def __getattr__(name: str) -> object:
        if name != "WORLD":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        # By name: the default world is above this package, which has WORLD as users look here.
        world = import_module("allhands.api.default_world").find_world()
        return None if world is None else world.group
