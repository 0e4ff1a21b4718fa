"""Calls over shared memory: a group's channel, its queue, and the ranks of one host."""
