"""The engine of a group: how collective calls are queued, carried out and ended."""
