"""Table of the primitive collectives: one row of facts for each. Pure data, no algorithm.

A primitive is carried out as one call: over links by a plan, over shared memory by a C function.
All that asks how primitives differ asks the row; the kinds of the native core are generated from
the table by `native/generate_kinds.py` (`make kinds`). The core has kinds of its own: composite
calls that it carries out as one call, where over links they take several.
"""

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from allhands_proto.quick_dataclass import dataclass


class Operand(Enum):
    """Arrays of a call on one side, input or output."""

    NONE = "none"
    ARRAY = "array"
    """One array of `count` elements."""
    BLOCKS = "blocks"
    """A block for each rank, of `count` elements or as the splits say; in one array or in many."""
    MESSAGES = "messages"
    """Bytes for each rank, of a size that only the sender knows."""


@dataclass(frozen=True, slots=True)
class Primitive:
    """Facts about one primitive collective."""

    name: str
    """Of its method, in signatures, in records and in the native core."""
    inputs: Operand = Operand.NONE
    """Arrays that are only read; NONE: the outputs, if there are any, hold the input at first."""
    outputs: Operand = Operand.NONE
    form_of: str = ""
    """The primitive with the same algorithms that takes its arrays in another form."""
    reduces: bool = False
    """Whether arrays of several ranks are combined by a reduce operation."""
    is_rooted: bool = False
    """Whether one rank alone gives, or gets."""
    has_splits: bool = False
    """Whether every rank says how long each block is that it sends or receives."""
    is_ragged: bool = False
    """Whether blocks are of lengths of their own, the same on all ranks; the output is new."""
    has_same_result: bool = False
    """Whether the outputs of all ranks are the same."""
    pair_receives_first: bool = False
    """Whether in a group of two no output is written over links before the peer's first message."""
    is_mergeable: bool = False
    """Whether coalescing carries out several calls as one."""
    has_inline_method: bool = False
    """Whether `ShmComm` has a method of this name, for calls on the caller's thread."""

    @property
    def has_plain_arguments(self) -> bool:
        """Whether that method takes arrays, operation and root, and one begins such a call."""
        takes_arrays = self.inputs is not Operand.MESSAGES and not self.is_ragged
        return self.has_inline_method and takes_arrays

    @property
    def takes_lists(self) -> bool:
        """Whether that method takes blocks as lists of arrays, and not in one array."""
        return self.has_plain_arguments and self.has_blocks and not self.form_of

    @property
    def algorithm(self) -> str:
        """Name of the plan, the phases and the C function."""
        return self.form_of or self.name

    @property
    def has_data(self) -> bool:
        return self.outputs is not Operand.NONE

    @property
    def is_in_place(self) -> bool:
        """Whether the outputs hold the input at first."""
        return self.has_data and self.inputs is Operand.NONE

    @property
    def has_blocks(self) -> bool:
        """Whether an argument has a block for each rank."""
        return Operand.BLOCKS in (self.inputs, self.outputs)

    @property
    def scales_with_size(self) -> bool:
        """Whether the data of a call is `count` elements for each rank of the group."""
        return self.has_blocks and not self.has_splits and not self.is_ragged

    @property
    def is_repeatable(self) -> bool:
        """Whether the arguments of a call mean the same whichever ranks the group has."""
        return not self.is_rooted and not self.has_blocks


_ROWS: Final = (
    Primitive("barrier", has_inline_method=True),
    Primitive(
        "all_reduce",
        outputs=Operand.ARRAY,
        reduces=True,
        has_same_result=True,
        pair_receives_first=True,
        is_mergeable=True,
        has_inline_method=True,
    ),
    Primitive(
        "reduce",
        inputs=Operand.ARRAY,
        outputs=Operand.ARRAY,
        reduces=True,
        is_rooted=True,
        has_inline_method=True,
    ),
    Primitive(
        "broadcast",
        outputs=Operand.ARRAY,
        is_rooted=True,
        has_same_result=True,
        pair_receives_first=True,
        has_inline_method=True,
    ),
    Primitive(
        "gather",
        inputs=Operand.ARRAY,
        outputs=Operand.BLOCKS,
        is_rooted=True,
        has_inline_method=True,
    ),
    Primitive(
        "scatter",
        inputs=Operand.BLOCKS,
        outputs=Operand.ARRAY,
        is_rooted=True,
        has_inline_method=True,
    ),
    Primitive(
        "all_gather",
        inputs=Operand.ARRAY,
        outputs=Operand.BLOCKS,
        has_same_result=True,
        pair_receives_first=True,
        has_inline_method=True,
    ),
    Primitive(
        "all_gather_into_tensor",
        inputs=Operand.ARRAY,
        outputs=Operand.BLOCKS,
        form_of="all_gather",
        has_same_result=True,
        pair_receives_first=True,
        is_mergeable=True,
        has_inline_method=True,
    ),
    Primitive(
        "reduce_scatter",
        inputs=Operand.BLOCKS,
        outputs=Operand.ARRAY,
        reduces=True,
        has_inline_method=True,
    ),
    Primitive(
        "reduce_scatter_tensor",
        inputs=Operand.BLOCKS,
        outputs=Operand.ARRAY,
        form_of="reduce_scatter",
        reduces=True,
        is_mergeable=True,
        has_inline_method=True,
    ),
    Primitive(
        "all_to_all",
        inputs=Operand.BLOCKS,
        outputs=Operand.BLOCKS,
        has_splits=True,
        pair_receives_first=True,
        has_inline_method=True,
    ),
    Primitive(
        "all_to_all_single",
        inputs=Operand.BLOCKS,
        outputs=Operand.BLOCKS,
        form_of="all_to_all",
        has_splits=True,
        pair_receives_first=True,
        has_inline_method=True,
    ),
)

PRIMITIVES: Final[Mapping[str, Primitive]] = MappingProxyType({row.name: row for row in _ROWS})
"""By name, in the order of the native core's numbers."""

_CORE_ROWS: Final = (
    Primitive("scan", outputs=Operand.ARRAY, reduces=True, has_inline_method=True),
    Primitive("exscan", outputs=Operand.ARRAY, reduces=True, has_inline_method=True),
    Primitive("exchange", inputs=Operand.MESSAGES, has_inline_method=True),
    Primitive(
        "reduce_scatter_v",
        inputs=Operand.BLOCKS,
        outputs=Operand.ARRAY,
        reduces=True,
        is_ragged=True,
        has_inline_method=True,
    ),
)

CORE_KINDS: Final[Mapping[str, Primitive]] = MappingProxyType(
    {**PRIMITIVES, **{row.name: row for row in _CORE_ROWS}}
)
"""All kinds of calls of the native core: primitives, then those that are composite over links."""
