"""Ways that stay on this host."""

import pytest

from allhands_proto.routes import stays_on_host
from support.ranks.addresses import address_beyond_loopback


def test_packets_to_an_own_address_stay_on_this_host() -> None:
    assert stays_on_host("127.0.0.1")
    assert stays_on_host(address_beyond_loopback())


@pytest.mark.parametrize(
    "host", ["192.0.2.1", "2001:db8::1", "0.0.0.0", "::", "localhost", "no-such-host", ""]
)
def test_other_addresses_and_names_are_no_own_addresses(host: str) -> None:
    assert not stays_on_host(host)
