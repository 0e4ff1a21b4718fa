"""Calls about the page of a coordinator's HTTP port."""

from allhands.coordinator.request_calls import RequestCalls
from allhands.deadlines import Timeout
from allhands.escapes import escape_line
from allhands.tracebacks import trims_tracebacks
from allhands_proto.quick_dataclass import dataclass
from allhands_proto.v1 import coordinator_pb2 as wire


@dataclass(frozen=True, slots=True)
class PageLink:
    """A link that opens the coordinator's page once; a secret."""

    url: str
    seconds: float
    """For which it opens the page, from when it was made."""


@trims_tracebacks
class PageCalls(RequestCalls):
    """Calls of a client about the page."""

    def page_link(self, name: str | None = None, *, timeout: Timeout | None = None) -> PageLink:
        """Return a link to the coordinator's page, for one browser, with this client's rights.

        Args:
            name: the job that is shown first; None: none.

        Raises:
            NotFound: the coordinator knows no such job.
            AllhandsError: the coordinator has no HTTP port.
        """
        request = wire.OpenPageRequest(job=name or "", host=self.endpoint.address.host)
        reply = self._call(self._calls.OpenPage, request, "open the page", timeout)
        return PageLink(escape_line(reply.url), reply.seconds)
