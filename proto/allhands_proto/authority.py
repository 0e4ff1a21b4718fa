"""A host with a port as text."""


def format_authority(host: str, port: int) -> str:
    """Write `host:port`, IPv6 in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
