"""The operations of the standard, by name."""

from allhands.mpi.operations.functions import STANDARD
from allhands.mpi.operations.op import Op

OP_NULL = Op()._name_constant("OP_NULL")
"""The null operation."""
CONSTANTS = {one.name: Op._of(one)._name_constant(one.name) for one in STANDARD}
"""All but the null operation, by name."""
SUM = CONSTANTS["SUM"]
REPLACE = CONSTANTS["REPLACE"]
NO_OP = CONSTANTS["NO_OP"]
