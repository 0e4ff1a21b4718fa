"""`allhands run`: launch the ranks of a job on this host, or on several over ssh.

Exit status: that of the first rank that failed (128 + n if signal n killed it), 128 + n when
signal n ended the launcher itself, 124 for a stall after which the ranks were ended, 126 or 127 for
a program that cannot be executed, 1 if the launch could not go on, 2 for wrong usage.
"""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from allhands.cli.choice import CoordinatorChoice
from allhands.cli.options import ClientOptions, takes_client
from allhands.cli.run_environment import check_network, read_variables
from allhands.cli.run_hosts import (
    HostOptions,
    check_host_options,
    make_host_launch,
    make_shared_environment,
)
from allhands.cli.run_options import (
    AdvertiseOption,
    BindCpusOption,
    CoordinatorOption,
    CountOption,
    CpuBinding,
    DataDirOption,
    EnvOption,
    GraceOption,
    HostfileOption,
    HostsOption,
    HttpOption,
    InterfaceOption,
    JobOption,
    LauncherAddressOption,
    MaxRestartsOption,
    MinSizeOption,
    ModuleOption,
    MpiOption,
    NodeOption,
    NodesOption,
    NoPythonOption,
    OnEventOption,
    OnStall,
    OnStallOption,
    PortRangeOption,
    ProgramArgument,
    RemoteDirOption,
    RemotePythonOption,
    SshOption,
    StallAfterOption,
    StartOption,
    TeeOption,
    WebhookOption,
)
from allhands.cli.run_outlets import make_outlets
from allhands.cli.run_program import Program, imports_mpi4py, parse_program
from allhands.launcher.supervision import GRACE_SECONDS
from allhands.runtime.exit_notice import choose_directory
from allhands.runtime.loading import load_command

if TYPE_CHECKING:
    from allhands.coordinator.endpoint import Endpoint
    from allhands.launcher.environment import Placement, Rendezvous
    from allhands.launcher.forking import ForkServer
    from allhands.launcher.plan import LaunchPlan, StartWay
    from allhands.launcher.stall import StallPolicy


@partial(takes_client, coordinator=CoordinatorOption)
def run_command(
    program: ProgramArgument = None,
    count: CountOption = None,
    is_module: ModuleOption = False,
    job: JobOption = None,
    nodes: NodesOption = 1,
    node: NodeOption = 0,
    tee: TeeOption = None,
    min_size: MinSizeOption = 0,
    advertise: AdvertiseOption = None,
    interface: InterfaceOption = None,
    port_range: PortRangeOption = None,
    data_dir: DataDirOption = None,
    grace: GraceOption = GRACE_SECONDS,
    start: StartOption = None,
    is_executable: NoPythonOption = False,
    is_mpi: MpiOption = False,
    variables: EnvOption = None,
    bind: BindCpusOption = CpuBinding.NONE,
    on_stall: OnStallOption = None,
    stall_after: StallAfterOption = None,
    max_restarts: MaxRestartsOption = 0,
    on_event: OnEventOption = None,
    webhook: WebhookOption = None,
    http: HttpOption = None,
    hosts: HostsOption = None,
    hostfile: HostfileOption = None,
    ssh: SshOption = "ssh",
    remote_python: RemotePythonOption = None,
    remote_dir: RemoteDirOption = None,
    launcher_address: LauncherAddressOption = None,
    *,
    client: ClientOptions,
) -> None:
    """Launch the ranks of a job on this host, or on several over ssh.

    Each rank gets the environment that torchrun would give it. What it prints comes out with its
    rank before each line. When one fails the others get 2 s to end by themselves, then SIGTERM; its
    exit status is the launcher's.
    """
    with load_command():
        from allhands.launcher.embedded import (
            make_job_endpoint,
            make_job_name,
            probe,
            run_embedded,
            run_embedded_for_hosts,
        )
        from allhands.launcher.environment import Rendezvous

    parsed = parse_program(program, is_module=is_module, is_executable=is_executable, is_mpi=is_mpi)
    _explain_mpi(parsed.script)
    over = make_host_launch(
        HostOptions(hosts, hostfile, ssh, remote_python, remote_dir, launcher_address), count
    )
    placement = _make_placement(count, nodes, node) if over is None else over.placement
    network_options = {
        "ALLHANDS_ADVERTISE": advertise,
        "ALLHANDS_INTERFACE": interface,
        "ALLHANDS_PORT_RANGE": port_range,
    }
    given = read_variables(variables or [], os.environ)
    environment = {
        **os.environ,
        **given,
        **{name: value for name, value in network_options.items() if value is not None},
    }
    if over is None:
        check_network(environment, network_options, placement)
    environment.pop("ALLHANDS_WEBHOOK", None)  # the address may be a secret
    outlets = make_outlets(on_event, webhook)
    stall = _make_stall_policy(on_stall, stall_after, max_restarts, nodes)
    endpoint = _find_endpoint(client)
    if over is not None:
        single = {"--nnodes": nodes > 1, "--node-rank": node}
        url_host = endpoint.address.host if endpoint is not None and over.address else None
        check_host_options(single, environment, url_host)
    way = _choose_start_way(start, environment)
    job = _resolve_job_name(job, endpoint)
    has_common_job = over is not None or (endpoint is not None and job is not None)
    _check_world(placement, min_size, has_common_job=has_common_job)
    if endpoint is not None:
        if data_dir is not None:
            raise typer.BadParameter(
                "the coordinator is there already, and keeps what it keeps: give the folder to "
                "`allhands serve`",
                param_hint="--data-dir",
            )
        if http is not None:
            raise typer.BadParameter(
                "the coordinator is there already: give the address to `allhands serve`, and ask "
                "for a link with `allhands page`",
                param_hint="--http",
            )
        endpoint = probe(endpoint)
    page = None if http is None else _parse_page_address(http)
    # Taken out: it is not for worlds of the ranks' own.
    named_dir = environment.pop("ALLHANDS_DATA_DIR", None)
    data_dir = data_dir or named_dir or None
    _explain_threads(environment, placement)
    binds = bind is CpuBinding.AUTO
    cpus = _deal_cpus(placement) if binds and over is None else {}
    directory = choose_directory()
    launch_hosts = () if over is None else over.hosts
    every = placement.ranks if over is None else range(placement.world_size)
    with _open_tees(tee, every) as tees:

        def make_plan(rendezvous: "Rendezvous") -> "LaunchPlan":
            from allhands.launcher.plan import LaunchPlan, choose_master

            return LaunchPlan(
                parsed.command,
                placement,
                rendezvous.endpoint,
                environment,
                tees,
                choose_master(placement, rendezvous.endpoint, launch_hosts),
                min_size,
                grace,
                start=way,
                is_python=parsed.is_python,
                cpus=cpus,
                outlets=outlets,
                stall=stall,
                max_restarts=max_restarts,
                hosts=launch_hosts,
                shared_environment=make_shared_environment(environment, given),
                binds_cpus=binds,
                report_exit=rendezvous.report_exit,
                directory=directory,
            )

        job = job or make_job_name(parsed.stem)
        meeting: AbstractAsyncContextManager[Rendezvous]
        if endpoint is not None:
            meeting = nullcontext(Rendezvous(make_job_endpoint(endpoint, job)))
        elif over is not None and over.address:
            meeting = run_embedded_for_hosts(
                job, over.address, data_dir, page, _tell_of_page, insecure=client.insecure
            )
        else:
            meeting = run_embedded(job, data_dir, page, _tell_of_page)
        is_here = over is None
        status = _run(
            *(make_plan, meeting),
            partial(_start_early, parsed, environment, placement, directory, way, is_here),
        )
    raise typer.Exit(status)


def _make_stall_policy(
    action: OnStall | None, seconds: float | None, max_restarts: int, nodes: int
) -> "StallPolicy | None":
    """Return the policy for stalls; None: there is none."""
    if max_restarts and nodes > 1:
        raise typer.BadParameter(
            "a launcher starts its own ranks anew, and not those of other nodes",
            param_hint="--max-restarts",
        )
    if action is None and seconds is None:
        return None
    if action is None or seconds is None:
        raise typer.BadParameter(
            "the two go together, as in: --on-stall report --stall-after 60",
            param_hint="--on-stall, --stall-after",
        )
    if action is OnStall.RESTART and not max_restarts:
        raise typer.BadParameter(
            "say how often, as in: --on-stall restart --max-restarts 3", param_hint="--on-stall"
        )
    from allhands.launcher.stall import StallPolicy

    return StallPolicy(action.value, seconds)


def _parse_page_address(text: str) -> tuple[str, int]:
    """Read the address of the page, which a launcher has for its own host."""
    from allhands.cli.serve import parse_address
    from allhands.coordinator.embed import check_http_packages
    from allhands_proto.loopback import is_loopback

    host, port = parse_address(text, "--http")
    if not is_loopback(host):
        raise typer.BadParameter(
            f"a launcher shows its page to this host alone, as at 127.0.0.1:{port}: for others "
            "start `allhands serve` with --http and TLS, and give its URL to --coordinator",
            param_hint="--http",
        )
    try:
        check_http_packages()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--http") from error
    return host, port


def _tell_of_page(url: str, link: str, seconds: float) -> None:
    """Print a link to the page: on a terminal alone, as what keeps output would keep a secret."""
    if sys.stderr.isatty():
        text = f"within {seconds:.0f} s; `allhands page` prints another"
        typer.echo(f"allhands: the page of this job, for one browser ({text}):\n{link}", err=True)
    else:
        _say(f"the job has a page at {url}: `allhands page` prints a link that opens it")


def _explain_threads(environment: Mapping[str, str], placement: "Placement") -> None:
    """Say that ranks get one OpenMP thread each, where nobody has set their number."""
    if placement.local_size > 1 and "OMP_NUM_THREADS" not in environment:
        _say(
            f"OMP_NUM_THREADS is not set: each of the {placement.local_size} ranks gets 1, so that "
            "they do not fight for the cores; --env OMP_NUM_THREADS=N sets it"
        )


def _explain_mpi(script: str) -> None:
    """Point out --mpi for a script of mpi4py, which an installed MPI would run as so many of 1."""
    if script and imports_mpi4py(Path(script)):
        _say(
            f"{script} imports mpi4py, whose MPI library does not know of the other ranks: "
            "--mpi runs it over allhands"
        )


def _deal_cpus(placement: "Placement") -> Mapping[int, frozenset[int]]:
    """Return the CPUs of each rank; empty: there are too few, which is said."""
    from allhands.launcher.cpu_binding import deal_cpus, read_usable_cpus

    usable = read_usable_cpus()
    if not (dealt := deal_cpus(usable, placement.ranks)):
        _say(
            f"--bind-cpus: {len(usable)} usable CPU{'s are' if len(usable) > 1 else ' is'} too few "
            f"for {placement.local_size} ranks, which are not bound"
        )
    return dealt


def _say(text: str) -> None:
    typer.echo(f"allhands: {text}", err=True)


def _check_world(placement: "Placement", min_size: int, *, has_common_job: bool) -> None:
    """Check that `min_size` ranks are possible, and that several nodes share a job."""
    started = sum(placement.counts) or placement.local_size
    if min_size > started:
        raise typer.BadParameter(
            f"{min_size} of {started} ranks cannot be left", param_hint="--min-size"
        )
    if placement.nodes > 1 and not has_common_job:
        raise typer.BadParameter(
            "several nodes meet at one coordinator and in one job: start `allhands serve`, and "
            "give every launcher the same --coordinator and --job",
            param_hint="--nnodes",
        )


def _make_placement(count: int | None, nodes: int, node: int) -> "Placement":
    from allhands.launcher.environment import Placement

    if count is None:
        raise typer.BadParameter("say how many ranks to start, as in: -n 4", param_hint="-n")
    try:
        return Placement(count, nodes, node)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="-n, --nnodes, --node-rank") from error


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


def _find_endpoint(choice: CoordinatorChoice) -> "Endpoint | None":
    """Return the endpoint of the chosen coordinator; None: embed a coordinator.

    A current context is no choice: a launch that needed no daemon would need one then.
    """
    from allhands.cli.endpoints import find_endpoint
    from allhands.coordinator.endpoint import check_privacy

    named = (os.environ.get(name) for name in ("ALLHANDS_URL", "ALLHANDS_CONTEXT"))
    if not (choice.coordinator or choice.context or any(named)):
        return None
    try:
        endpoint = find_endpoint(choice, os.environ)
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
def _open_tees(directory: Path | None, ranks: range) -> Iterator[Mapping[int, int]]:
    from allhands.launcher.tee import open_tee_files

    if directory is None:
        yield {}
        return
    with ExitStack() as stack:
        try:
            tees = stack.enter_context(open_tee_files(directory, ranks))
        except FileExistsError as error:
            raise typer.BadParameter(
                f"{error}; give another directory, or remove them", param_hint="--tee"
            ) from error
        yield tees


def _start_early(
    program: Program,
    environment: Mapping[str, str],
    placement: "Placement",
    directory: str,
    way: "StartWay",
    is_here: bool,
) -> "ForkServer | None":
    """Start the interpreter that ranks of this host are forked from, if they are.

    It and this process import at the same time then.
    """
    if not is_here:
        return None
    from allhands.launcher.environment import make_common_environment
    from allhands.launcher.forking import start_early

    common = make_common_environment(environment, directory)
    return start_early(program.command, common, placement, way, is_python=program.is_python)


def _run(
    make_plan: "Callable[[Rendezvous], LaunchPlan]",
    meeting: "AbstractAsyncContextManager[Rendezvous]",
    start_early: "Callable[[], ForkServer | None]",
) -> int:
    with load_command():
        import uvloop

    async def run() -> int:
        with ExitStack() as stack:
            if (server := start_early()) is not None:
                stack.callback(server.close)
            with load_command():
                from allhands.launcher.launch import launch
            async with meeting as rendezvous:
                return await launch(make_plan(rendezvous), server)

    return uvloop.run(run())
