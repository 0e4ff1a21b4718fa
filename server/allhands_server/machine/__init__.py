"""The pure part of the coordinator: state and rules without loop, network or clock."""

from allhands_server.machine.machine import Machine

__all__ = ["Machine"]
