"""Conditions and operations of transactions on keys.

from allhands import kv

done = client.transaction(
    [kv.version("leader") == 0],  # nobody has set it
    [kv.Put("leader", name, lease=lease.number)],
    [kv.Get("leader")],
)
"""

from allhands.coordinator.kv.transactions import (
    Condition,
    Delete,
    Get,
    Operation,
    Put,
    create_revision,
    lease,
    mod_revision,
    value,
    version,
)

__all__ = [
    "Condition",
    "Delete",
    "Get",
    "Operation",
    "Put",
    "create_revision",
    "lease",
    "mod_revision",
    "value",
    "version",
]
