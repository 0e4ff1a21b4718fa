"""`allhands run`: launch the ranks of a job on this host.

Exit status: that of the first rank that failed (128 + n if signal n killed it), 128 + n when
signal n ended the launcher itself, 1 if the launch could not go on, 2 for wrong usage.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from allhands.cli.options import InsecureOption
from allhands.launcher.supervision import GRACE_SECONDS
from allhands.runtime.loading import pause_gc

if TYPE_CHECKING:
    from allhands.coordinator.endpoint import Endpoint
    from allhands.launcher.environment import Placement
    from allhands.launcher.plan import StartWay

_PYTHON = sys.executable, "-u"
_INTERPRETER = re.compile(r"python(\d+(\.\d+)?t?)?")


_ProgramArgument: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCRIPT [ARGS]...",
        help="A Python script (with -m: a module) and its arguments; `python` may go before.",
    ),
]

_CountOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--nproc", "-n", metavar="N", help="How many ranks to start on this host."),
]

_ModuleOption: TypeAlias = Annotated[
    bool, typer.Option("--module", "-m", help="SCRIPT is a module, as in python -m.")
]

_CoordinatorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="ah://HOST:PORT[/JOB] of a running coordinator; else ALLHANDS_URL, else one is "
        "embedded in the launcher.",
    ),
]

_JobOption: TypeAlias = Annotated[
    str | None, typer.Option(help="Name of the job; else made from the script's.")
]

_NodesOption: TypeAlias = Annotated[
    int, typer.Option("--nnodes", metavar="K", help="How many launchers make up the world.")
]

_NodeOption: TypeAlias = Annotated[
    int, typer.Option("--node-rank", metavar="I", help="Which of them this is, from 0.")
]

_TeeOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        file_okay=False,
        help="Keep a copy of each rank's output, both streams, in DIR/rank-K.log.",
    ),
]

_MinSizeOption: TypeAlias = Annotated[
    int,
    typer.Option(
        "--min-size",
        metavar="L",
        min=0,
        help="Let ranks fail as long as L of them run or have ended well; else none may.",
    ),
]

_AdvertiseOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="HOST",
        help="Name or address under which ranks on other hosts reach those of this one; else "
        "ALLHANDS_ADVERTISE, else it is found.",
    ),
]

_InterfaceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Network interface on which the ranks listen for each other; else "
        "ALLHANDS_INTERFACE, else the one on the way to the coordinator.",
    ),
]

_PortRangeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--port-range",
        metavar="LOW-HIGH",
        help="Ports on which the ranks listen, two each; else ALLHANDS_PORT_RANGE, else any.",
    ),
]

_DataDirOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder for the state of the launcher's own coordinator, over its end; else "
        "ALLHANDS_DATA_DIR, else in memory.",
    ),
]

_GraceOption: TypeAlias = Annotated[
    float,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        min=0,
        help="How long ranks may take to end after SIGTERM, before SIGKILL.",
    ),
]

_StartOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="auto|fork|exec",
        help="Fork the ranks from one Python that has imported NumPy and allhands, or start one "
        "for each; else ALLHANDS_RUN_START, else auto: fork two ranks and more, where possible.",
    ),
]


def run_command(
    program: _ProgramArgument = None,
    count: _CountOption = None,
    is_module: _ModuleOption = False,
    coordinator: _CoordinatorOption = None,
    job: _JobOption = None,
    nodes: _NodesOption = 1,
    node: _NodeOption = 0,
    tee: _TeeOption = None,
    min_size: _MinSizeOption = 0,
    advertise: _AdvertiseOption = None,
    interface: _InterfaceOption = None,
    port_range: _PortRangeOption = None,
    insecure: InsecureOption = False,
    data_dir: _DataDirOption = None,
    grace: _GraceOption = GRACE_SECONDS,
    start: _StartOption = None,
) -> None:
    """Launch the ranks of a job on this host.

    Each rank gets the environment that torchrun would give it. What it prints comes out with its
    rank before each line. When one fails the others get 2 s to end by themselves, then SIGTERM; its
    exit status is the launcher's.
    """
    from allhands.launcher.embedded import make_job_name, probe

    arguments, stem = _parse_program(program, is_module)
    placement = _make_placement(count, nodes, node)
    network_options = {
        "ALLHANDS_ADVERTISE": advertise,
        "ALLHANDS_INTERFACE": interface,
        "ALLHANDS_PORT_RANGE": port_range,
    }
    environment = os.environ | {
        name: value for name, value in network_options.items() if value is not None
    }
    _check_network(environment, network_options, placement)
    endpoint = _find_endpoint(coordinator, insecure)
    way = _choose_start_way(start, environment)
    job = _resolve_job_name(job, endpoint)
    _check_world(placement, min_size, has_common_job=endpoint is not None and job is not None)
    if endpoint is not None:
        if data_dir is not None:
            raise typer.BadParameter(
                "the coordinator is there already, and keeps what it keeps: give the folder to "
                "`allhands serve`",
                param_hint="--data-dir",
            )
        probe(endpoint)
    # Taken out: it is not for worlds of the ranks' own.
    named_dir = environment.pop("ALLHANDS_DATA_DIR", None)
    data_dir = data_dir or named_dir or None
    with _open_tees(tee, placement) as tees:
        job = job or make_job_name(stem)
        status = _run(
            arguments, placement, endpoint, job, tees, min_size, environment, grace, data_dir, way
        )
    raise typer.Exit(status)


def _check_world(placement: "Placement", min_size: int, *, has_common_job: bool) -> None:
    """Check that `min_size` ranks are possible, and that several nodes share a job."""
    if min_size > placement.local_size:
        raise typer.BadParameter(
            f"{min_size} of {placement.local_size} ranks cannot be left", param_hint="--min-size"
        )
    if placement.nodes > 1 and not has_common_job:
        raise typer.BadParameter(
            "several nodes meet at one coordinator and in one job: start `allhands serve`, and "
            "give every launcher the same --coordinator and --job",
            param_hint="--nnodes",
        )


def _parse_program(program: Sequence[str] | None, is_module: bool) -> tuple[tuple[str, ...], str]:
    """Return the command of each rank, and the stem for the job's name."""
    hint = "SCRIPT"
    if not program:
        raise typer.BadParameter(
            "say what to run, as in: allhands run -n 4 script.py", param_hint=hint
        )
    script, *arguments = program
    if is_module:
        return (*_PYTHON, "-m", script, *arguments), script
    if (interpreter := _find_interpreter(script)) is not None:
        if not arguments:
            raise typer.BadParameter(
                f"say what {script!r} is to run, as in: allhands run -n 4 {script} script.py",
                param_hint=hint,
            )
        named = next((one for one in arguments if one.endswith(".py")), script)
        return (interpreter, "-u", *arguments), Path(named).stem
    if script.startswith("-"):
        raise typer.BadParameter(
            f"{script!r} is no script; options of allhands stand before the script, "
            "options of the script after it",
            param_hint=hint,
        )
    if not Path(script).exists():
        raise typer.BadParameter(
            f"there is no {script!r} in {Path.cwd()}; to run a module, give -m", param_hint=hint
        )
    return (*_PYTHON, script, *arguments), Path(script).stem


def _find_interpreter(name: str) -> str | None:
    """Return the path of the Python named by a first argument; None: a script."""
    if not _INTERPRETER.fullmatch(Path(name).name):
        return None
    found = shutil.which(name)
    # As it is called, not where links lead: by that Python finds its virtual environment.
    return None if found is None else os.path.abspath(found)


def _make_placement(count: int | None, nodes: int, node: int) -> "Placement":
    from allhands.launcher.environment import Placement

    if count is None:
        raise typer.BadParameter("say how many ranks to start, as in: -n 4", param_hint="-n")
    try:
        return Placement(count, nodes, node)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="-n, --nnodes, --node-rank") from error


def _check_network(
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


def _choose_start_way(option: str | None, environment: Mapping[str, str]) -> "StartWay":
    from allhands.launcher.plan import START_WAYS

    said = option or environment.get("ALLHANDS_RUN_START") or "auto"
    for way in START_WAYS:
        if way == said:
            return way
    raise typer.BadParameter(
        f"{said!r} is none of {', '.join(START_WAYS)}",
        param_hint="--start" if option else "ALLHANDS_RUN_START",
    )


def _find_endpoint(coordinator: str | None, insecure: bool) -> "Endpoint | None":
    """Return the endpoint of the chosen coordinator; None: embed a coordinator."""
    from allhands.coordinator.endpoint import check_privacy, find_coordinator

    if not (coordinator or os.environ.get("ALLHANDS_URL")):
        return None
    try:
        endpoint = find_coordinator(coordinator, os.environ, insecure=insecure)
        check_privacy(endpoint)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--coordinator") from error
    return endpoint


def _resolve_job_name(job: str | None, endpoint: "Endpoint | None") -> str | None:
    """Return the job named by the option or the coordinator's URL."""
    in_url = endpoint.address.job if endpoint is not None else None
    if job is None:
        return in_url
    if in_url is not None and in_url != job:
        raise typer.BadParameter(
            f"the coordinator's URL names job {in_url!r}, not {job!r}; name it once",
            param_hint="--job",
        )
    if not job or "/" in job or job != "".join(job.split()):
        raise typer.BadParameter(
            f"a job's name holds no slash and no space, unlike {job!r}", param_hint="--job"
        )
    return job


@contextmanager
def _open_tees(directory: Path | None, placement: "Placement") -> Iterator[Mapping[int, int]]:
    from allhands.launcher.tee import open_tee_files

    if directory is None:
        yield {}
        return
    with ExitStack() as stack:
        try:
            tees = stack.enter_context(open_tee_files(directory, placement.ranks))
        except FileExistsError as error:
            raise typer.BadParameter(
                f"{error}; give another directory, or remove them", param_hint="--tee"
            ) from error
        yield tees


def _run(
    program: tuple[str, ...],
    placement: "Placement",
    endpoint: "Endpoint | None",
    job: str,
    tees: Mapping[int, int],
    min_size: int,
    environment: Mapping[str, str],
    grace: float,
    data_dir: str | None,
    start: "StartWay",
) -> int:
    with pause_gc():
        import uvloop

        from allhands.launcher.embedded import make_job_endpoint, run_embedded
        from allhands.launcher.launch import launch
        from allhands.launcher.plan import LaunchPlan, choose_master

    async def run() -> int:
        meeting = (
            nullcontext(make_job_endpoint(endpoint, job))
            if endpoint
            else run_embedded(job, data_dir)
        )
        async with meeting as rendezvous:
            master = choose_master(placement, rendezvous)
            return await launch(
                LaunchPlan(
                    program,
                    placement,
                    rendezvous,
                    environment,
                    tees,
                    master,
                    min_size,
                    grace,
                    start=start,
                )
            )

    return uvloop.run(run())
