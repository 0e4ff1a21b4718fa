"""Hosts of `allhands run --hosts` and `--hostfile`: what is started where, and how they meet."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from allhands_proto.quick_dataclass import dataclass

if TYPE_CHECKING:
    from allhands.launcher.environment import Placement
    from allhands.launcher.hosts import HostRanks
    from allhands.launcher.plan import LaunchHost

_OF_THIS_LAUNCHER = ("ALLHANDS_DATA_DIR", "ALLHANDS_RUN_START", "ALLHANDS_HTTP")
_OF_ONE_HOST = {
    "ALLHANDS_ADVERTISE": "--advertise",
    "ALLHANDS_LISTEN": "ALLHANDS_LISTEN",
}


@dataclass(frozen=True, slots=True)
class HostOptions:
    """Options of a launch over several hosts."""

    hosts: str | None
    hostfile: Path | None
    ssh: str
    python: str | None
    directory: str | None
    launcher_address: str | None


@dataclass(frozen=True, slots=True)
class HostLaunch:
    """Hosts of a launch, and where they reach this one."""

    hosts: "tuple[LaunchHost, ...]"
    placement: "Placement"
    address: str
    """Of this host for the others; empty: all ranks are here."""


def make_host_launch(options: HostOptions, count: int | None) -> HostLaunch | None:
    """Read the hosts and find out how they are reached; None: no hosts are named.

    Raises:
        typer.BadParameter: the options are malformed or contradictory, or no address of this host
            is known for the others.
    """
    found = _read_hosts(options, count)
    if found is None:
        return None
    from allhands.launcher import ssh as ssh_commands
    from allhands.launcher.environment import Placement
    from allhands.launcher.plan import LaunchHost

    try:
        command = shlex.split(options.ssh)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--ssh") from error
    if not command:
        raise typer.BadParameter("name a command that takes ssh's arguments", param_hint="--ssh")
    python, directory = options.python or sys.executable, options.directory or os.getcwd()
    hosts = tuple(
        LaunchHost(
            one.name,
            ssh_commands.make_agent_command(one.name, command, directory, python),
            ssh_commands.find_address(one.name, command),
            "" if ssh_commands.is_local(one.name) else python,
        )
        for one in found
    )
    placement = Placement.of_counts([one.count for one in found], 0)
    return HostLaunch(hosts, placement, _find_own_address(options, hosts))


def _read_hosts(options: HostOptions, count: int | None) -> "tuple[HostRanks, ...] | None":
    from allhands.launcher.hosts import parse_hostfile, parse_hosts

    if options.hosts is not None and options.hostfile is not None:
        raise typer.BadParameter("give one of the two", param_hint="--hosts, --hostfile")
    if options.hosts is not None:
        try:
            return parse_hosts(options.hosts, count)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--hosts") from error
    if options.hostfile is not None:
        try:
            return parse_hostfile(options.hostfile.read_text(), count)
        except (ValueError, OSError) as error:
            said = f"{options.hostfile}: {error}" if isinstance(error, ValueError) else str(error)
            raise typer.BadParameter(said, param_hint="--hostfile") from error
    return None


def _find_own_address(options: HostOptions, hosts: "Sequence[LaunchHost]") -> str:
    """Return the address of this host for the others; empty: there are no others."""
    from allhands.config import read_host
    from allhands.launcher import ssh as ssh_commands

    others = [one.address for one in hosts if not ssh_commands.is_local(one.name)]
    if not others:
        return ""
    if options.launcher_address is not None:
        try:
            return read_host(options.launcher_address, "--launcher-address")
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--launcher-address") from error
    if not (found := ssh_commands.find_own_address(others)):
        raise typer.BadParameter(
            "this host has no address at which the others could reach its coordinator; name one",
            param_hint="--launcher-address",
        )
    return found


def check_host_options(
    options: Mapping[str, object], environment: Mapping[str, str], url_host: str | None
) -> None:
    """Check what goes with several hosts.

    Args:
        options: those that do not, by name, with their values.
        url_host: host of the named coordinator; None: it is the launcher's own.

    Raises:
        typer.BadParameter: an option or variable means one host alone.
    """
    from allhands.config import read_port_range
    from allhands_proto.loopback import is_loopback

    for name, value in options.items():
        if value:
            raise typer.BadParameter(
                "with --hosts one launcher starts the ranks of all hosts", param_hint=name
            )
    for variable, name in _OF_ONE_HOST.items():
        if environment.get(variable):
            raise typer.BadParameter(
                "one address cannot be that of several hosts; --interface names an interface that "
                "each of them has",
                param_hint=name,
            )
    try:
        read_port_range(environment.get("ALLHANDS_PORT_RANGE", ""), "--port-range")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--port-range") from error
    if url_host is not None and is_loopback(url_host):
        raise typer.BadParameter(
            f"other hosts do not reach {url_host}: name the coordinator by an address of its host, "
            "or leave it out, and the launcher has one of its own",
            param_hint="--coordinator",
        )


def make_shared_environment(
    environment: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, str]:
    """Return what ranks on other hosts get beside their own environment.

    That are the variables of --env, and settings of allhands: secrets among them go over standard
    input, as all of it.
    """
    from allhands.launcher.environment import OWN_VARIABLES

    left_out = {*OWN_VARIABLES, *_OF_THIS_LAUNCHER}
    settings = {
        name: value
        for name, value in environment.items()
        if name.startswith("ALLHANDS_") and name not in left_out
    }
    return {**settings, **variables}
