"""A coordinator as the pages of its HTTP port see it."""

from allhands_proto.quick_dataclass import dataclass
from allhands_server.access import Access
from allhands_server.coordinator import Coordinator
from allhands_server.http.authorization import Authorization


@dataclass(frozen=True, slots=True)
class Served:
    """A coordinator with the checks of its callers."""

    coordinator: Coordinator
    access: Access
    authorization: Authorization
    engine: str
    """Of its log: `memory`, `sqlite` or `etcd`."""
