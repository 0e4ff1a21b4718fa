"""Names under which torch.distributed finds this package; importing them costs nothing."""

NAME = "allhands"
"""Of the backend, and of torchrun's rendezvous."""
SCHEME = "ah"
FAKE = "fake"
