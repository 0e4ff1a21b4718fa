"""Options of `allhands run`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

ProgramArgument: TypeAlias = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SCRIPT [ARGS]...",
        help="A Python script (with -m: a module; with --no-python: any program) and its "
        "arguments; `python` may go before.",
    ),
]

CountOption: TypeAlias = Annotated[
    int | None,
    typer.Option(
        "--nproc",
        "-n",
        metavar="N",
        help="How many ranks to start on this host; with --hosts: on each that names no number.",
    ),
]

ModuleOption: TypeAlias = Annotated[
    bool, typer.Option("--module", "-m", help="SCRIPT is a module, as in python -m.")
]

CoordinatorOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--coordinator",
        metavar="URL",
        help="ah://HOST:PORT[/JOB] of a running coordinator; else that of --context, ALLHANDS_URL, "
        "ALLHANDS_CONTEXT, else one is embedded in the launcher.",
    ),
]

JobOption: TypeAlias = Annotated[
    str | None, typer.Option(metavar="NAME", help="Name of the job; else made from the script's.")
]

NodesOption: TypeAlias = Annotated[
    int, typer.Option("--nnodes", metavar="K", help="How many launchers make up the world.")
]

NodeOption: TypeAlias = Annotated[
    int, typer.Option("--node-rank", metavar="I", help="Which of them this is, from 0.")
]

TeeOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="DIR",
        file_okay=False,
        help="Keep a copy of each rank's output, both streams, in DIR/rank-K.log.",
    ),
]

MinSizeOption: TypeAlias = Annotated[
    int,
    typer.Option(
        "--min-size",
        metavar="L",
        min=0,
        help="Let ranks fail as long as L of them run or have ended well; else none may.",
    ),
]

AdvertiseOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="HOST",
        help="Name or address under which ranks on other hosts reach those of this one; else "
        "ALLHANDS_ADVERTISE, else it is found.",
    ),
]

InterfaceOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Network interface on which the ranks listen for each other; else "
        "ALLHANDS_INTERFACE, else the one on the way to the coordinator.",
    ),
]

PortRangeOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--port-range",
        metavar="LOW-HIGH",
        help="Ports on which the ranks listen, two each; else ALLHANDS_PORT_RANGE, else any.",
    ),
]

DataDirOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        help="Folder for the state of the launcher's own coordinator, over its end; else "
        "ALLHANDS_DATA_DIR, else in memory.",
    ),
]

HttpOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Address on this host for a page of the job, as 127.0.0.1:7071, or 127.0.0.1:0 for "
        "any port; needs allhands[http].",
    ),
]

GraceOption: TypeAlias = Annotated[
    float,
    typer.Option(
        "--grace",
        metavar="SECONDS",
        min=0,
        help="How long ranks may take to end after SIGTERM, before SIGKILL.",
    ),
]

StartOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="auto|fork|exec",
        help="Fork the ranks from one Python that has imported NumPy and allhands, or start one "
        "for each; else ALLHANDS_RUN_START, else auto: fork two ranks and more, where possible.",
    ),
]

NoPythonOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--no-python",
        help="SCRIPT is a program of any kind, found on the PATH and executed as it is.",
    ),
]

MpiOption: TypeAlias = Annotated[
    bool,
    typer.Option(
        "--mpi",
        help="SCRIPT (with -m: the module) is written for mpi4py: its MPI is that of allhands.",
    ),
]

EnvOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME[=VALUE]",
        help="Set a variable for all ranks; without a value: to the one that it has here. May be "
        "repeated.",
    ),
]


class CpuBinding(StrEnum):
    """Values of `--bind-cpus`."""

    NONE = "none"
    AUTO = "auto"


BindCpusOption: TypeAlias = Annotated[
    CpuBinding,
    typer.Option(
        "--bind-cpus",
        help="auto: bind each rank to its share of the host's usable CPUs, neighbouring cores.",
    ),
]


class OnStall(StrEnum):
    """Values of `--on-stall`."""

    REPORT = "report"
    ABORT = "abort"
    RESTART = "restart"


OnStallOption: TypeAlias = Annotated[
    OnStall | None,
    typer.Option(
        "--on-stall",
        help="When a call has waited for --stall-after for ranks that do not come: print the "
        "diagnosis; also abort the job; or start all ranks anew (--max-restarts).",
    ),
]

StallAfterOption: TypeAlias = Annotated[
    float | None,
    typer.Option(
        "--stall-after",
        metavar="SECONDS",
        min=0.1,
        help="How long a call may wait for ranks that do not come.",
    ),
]

MaxRestartsOption: TypeAlias = Annotated[
    int,
    typer.Option(
        "--max-restarts",
        metavar="N",
        min=0,
        help="Start all ranks anew, at most N times, when one fails or the job stalls.",
    ),
]

HostsOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--hosts",
        metavar="A,B:4",
        help="Start the ranks on these hosts over ssh, each with its number of ranks, else -n.",
    ),
]

HostfileOption: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--hostfile",
        metavar="FILE",
        dir_okay=False,
        help="The same from a file: lines as `a`, `b:4` or `c slots=4`.",
    ),
]

SshOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--ssh",
        metavar="COMMAND",
        help="Command that takes ssh's arguments, with options of its own, as in 'ssh -p 2222'.",
    ),
]

RemotePythonOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--remote-python",
        metavar="PATH",
        help="Python of the other hosts, which has allhands; else the path of this one.",
    ),
]

RemoteDirOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--remote-dir", metavar="DIR", help="Where ranks run on other hosts; else as here."
    ),
]

LauncherAddressOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--launcher-address",
        metavar="HOST",
        help="Name or address at which the other hosts reach the launcher's coordinator; else "
        "that of the way to the first of them.",
    ),
]

OnEventOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--on-event",
        metavar="COMMAND",
        help="Shell command to run for each event of the job, with the event as JSON on its "
        "standard input; 10 s at most.",
    ),
]

WebhookOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--webhook",
        metavar="URL",
        envvar="ALLHANDS_WEBHOOK",
        help="Address to which each event of the job is posted, as JSON.",
    ),
]
