"""Readiness of a daemon, for supervisors and load balancers."""

from allhands_server.http.served import Served


class Readiness:
    """Whether requests are served here, from before the coordinator has its state."""

    def __init__(self) -> None:
        self.served: Served | None = None
        """None while the daemon starts."""

    @property
    def leads(self) -> bool:
        """Whether requests are carried out here, and not by another daemon."""
        return self.served is not None and self.served.coordinator.leads

    def find_obstacle(self) -> str:
        """Return the reason why the daemon is not ready; empty: it is.

        No addresses or names: strangers may read it.
        """
        if self.served is None:
            return "the daemon starts, and reads its log"
        return self.served.coordinator.find_obstacle()
