"""Names under which torch.distributed finds this package; cheap to import."""

NAME = "allhands"
"""Of the backend, and of torchrun's rendezvous."""
SCHEME = "ah"
FAKE = "fake"


def list_backends(text: str) -> set[str]:
    """Return the names of backends in "NAME" or "DEVICE:NAME,DEVICE:NAME", in lower case."""
    return {one.rpartition(":")[2].strip() for one in text.lower().split(",")}
