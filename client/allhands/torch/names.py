"""Names under which torch.distributed finds this package; cheap to import."""

NAME = "allhands"
"""Of the backend, and of torchrun's rendezvous."""
SCHEME = "ah"
FAKE = "fake"
