"""Check of the packages of the extra `http`, which only coordinators with an HTTP port need."""

from importlib.util import find_spec

_PACKAGES = {
    "starlette": "starlette",
    "uvicorn": "uvicorn",
    "prometheus_client": "prometheus-client",
}
"""By module."""


def check_installed() -> None:
    """Check that the packages are there, without loading them.

    Raises:
        ValueError: some are missing; says which, and how to install them.
    """
    missing = [package for module, package in _PACKAGES.items() if find_spec(module) is None]
    if missing:
        raise ValueError(
            f"--http needs {', '.join(missing)}, which are not installed here: "
            "pip install 'allhands[http]'"
        )
