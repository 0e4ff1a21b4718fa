"""Examination of a host, and of the network between hosts: what is wrong there, and the fix."""
