"""Environment of the ranks of `allhands run`, as its options make it from the launcher's own."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from allhands.launcher.environment import Placement

# A text: `re` compiles it when it is first needed, which few starts of a job pay for.
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"


def read_variables(options: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that `--env NAME[=VALUE]` options name; without a value: `environ`'s.

    Raises:
        typer.BadParameter: a name is none, is not set here, or is the launcher's to set.
    """
    from allhands.launcher.environment import OWN_VARIABLES

    found = {}
    for option in options:
        name, equals, value = option.partition("=")
        if not re.fullmatch(_NAME, name):
            raise typer.BadParameter(
                f"{option!r} is not NAME or NAME=VALUE, as in: --env NCCL_DEBUG=INFO",
                param_hint="--env",
            )
        if name in OWN_VARIABLES:
            raise typer.BadParameter(
                f"the launcher itself sets {name} for each rank", param_hint="--env"
            )
        if not equals and name not in environ:
            raise typer.BadParameter(
                f"{name} is not set here, so that there is nothing to pass on: export it, or give "
                f"--env {name}=VALUE",
                param_hint="--env",
            )
        found[name] = value if equals else environ[name]
    return found


def check_network(
    environment: Mapping[str, str],
    network_options: Mapping[str, str | None],
    placement: "Placement",
) -> None:
    """Check the network options before any rank of this host starts.

    Raises:
        typer.BadParameter: they cannot; it names the option, or the variable where that says so.
    """
    from allhands.config import BACKENDS, read_host, read_port_range
    from allhands.runtime import interfaces

    options = {
        "ALLHANDS_ADVERTISE": "--advertise",
        "ALLHANDS_INTERFACE": "--interface",
        "ALLHANDS_PORT_RANGE": "--port-range",
    }
    names = {
        one: options[one] if said is not None else one for one, said in network_options.items()
    }
    checking = "ALLHANDS_ADVERTISE"
    try:
        read_host(environment.get(checking, ""), names[checking])
        checking = "ALLHANDS_INTERFACE"
        if interface := environment.get(checking):
            interfaces.get_address(interface)
        checking = "ALLHANDS_PORT_RANGE"
        ports = read_port_range(environment.get(checking, ""), names[checking])
        backend = BACKENDS.get(environment.get("ALLHANDS_BACKEND", ""), BACKENDS["auto"])
        each = backend.listening_ports
        if ports is not None and len(ports) < each * placement.local_size:
            raise ValueError(
                f"{len(ports)} ports are too few for {placement.local_size} ranks, "
                f"which listen on {each} each"
            )
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=names[checking]) from error
