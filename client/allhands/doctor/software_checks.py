"""Checks of this installation. Pure."""

from collections.abc import Iterator

from allhands.doctor.finding import Finding, ok, skip, warn
from allhands.doctor.machine import Machine


def check_software(machine: Machine) -> Iterator[Finding]:
    """Check the native core and the versions of what allhands uses."""
    yield check_core(machine)
    yield check_compiler(machine)
    yield check_versions(machine)


def check_core(machine: Machine) -> Finding:
    if not machine.core_problem:
        return ok("native core", "loaded")
    reason, _, advice = machine.core_problem.partition("; ")
    return warn("native core", reason, advice or machine.core_problem)


def check_compiler(machine: Machine) -> Finding:
    if not machine.core_problem:
        return ok("compiler", f"not needed, the core is built ({machine.compiler or 'none'})")
    if not machine.compiler:
        return warn(
            "compiler",
            "none was found (cc, gcc, clang): the native core cannot be built",
            "install one and the headers of Python (Debian: apt install gcc libc6-dev "
            "python3-dev), then build allhands anew",
        )
    return skip("compiler", f"{machine.compiler}: the native core can be built with it")


def check_versions(machine: Machine) -> Finding:
    return ok("versions", ", ".join(f"{name} {one}" for name, one in machine.versions.items()))
