"""The flight recorder: latest calls of this rank, with call sites and outcomes."""
