"""Hosts with ports as text: HOST:PORT, an IPv6 address in brackets."""

import ipaddress
import re

WILDCARDS = ("0.0.0.0", "::")

# A text: `re` compiles it when it is first needed, which few starts of a job pay for.
_FORM = r"(?:\[(?P<ipv6>[^\[\]]+)\]|(?P<name>[^\[\]:/@,\s]+))(?::(?P<port>[0-9]{1,5}))?"


def parse_authority(text: str, default_port: int | None = None) -> tuple[str, int] | None:
    """Read HOST:PORT, or HOST alone where there is a default port; None: it is neither.

    An IPv6 address with a port stands in brackets; without a port it may.
    """
    if default_port is not None and _is_ipv6(text):
        return text, default_port
    found = re.fullmatch(_FORM, text)
    if found is None or (found["ipv6"] is not None and not _is_ipv6(found["ipv6"])):
        return None
    port = default_port if found["port"] is None else int(found["port"])
    return None if port is None or port > 65535 else (found["ipv6"] or found["name"], port)


def _is_ipv6(text: str) -> bool:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return False
    return True
