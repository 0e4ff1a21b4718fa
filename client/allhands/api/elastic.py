"""State for programs that continue after losing and gaining ranks."""

from allhands.api.default_world import default_group
from allhands.collectives.arguments import AnyArray
from allhands.group.group import Group
from allhands.membership import state
from allhands.membership.state import Scalar


class State(state.State):
    """`State` of `membership.state`; without a group, of the world."""

    def __init__(self, group: Group | None = None, **values: AnyArray | Scalar) -> None:
        super().__init__(group or default_group(), **values)
