"""`allhands context`: coordinators with their credentials, by name."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from allhands.cli.completion import complete_contexts
from allhands.cli.contexts import Context, Contexts, load_contexts, locate_contexts, save_contexts
from allhands.cli.options import (
    InsecureOption,
    TlsCaOption,
    TlsCertOption,
    TlsDirOption,
    TlsKeyOption,
    TokenFileOption,
)
from allhands.cli.render import Output, make_output_option
from allhands.cli.watching import View
from allhands.coordinator.sections import Section, Table
from allhands_proto.tls_files import find_tls_directory

context_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

_Name: TypeAlias = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_contexts)]


@context_app.command("list")
def list_contexts(
    output: Annotated[Output, make_output_option(*Output)] = Output.TABLE,
) -> None:
    """List the contexts; `*` stands before the current one."""
    with _explain():
        known = load_contexts(os.environ)
    View(
        "ContextList",
        lambda: {"contexts": [_make_fields(known, name) for name in sorted(known.contexts)]},
        lambda: _describe(known),
        lambda: sorted(known.contexts),
    ).show(output)


@context_app.command("show")
def show(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Else the current one.", autocompletion=complete_contexts
        ),
    ] = None,
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML, Output.NAME)
    ] = Output.TABLE,
) -> None:
    """Show one context: the coordinator's URL, and the paths of files; never what is in them."""
    with _explain():
        known = load_contexts(os.environ)
        if (chosen := name or known.current) is None:
            raise ValueError("no context is current: choose one with `allhands context use NAME`")
        context = known.find(chosen)
    lines = [f"{key}: {value}" for key, value in asdict(context).items() if value]
    View(
        "Context",
        lambda: _make_fields(known, chosen),
        lambda: [f"name: {chosen}", *lines],
        lambda: [chosen],
    ).show(output)


@context_app.command("set")
def set_context(
    name: Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_contexts)],
    coordinator: Annotated[
        str, typer.Option("--coordinator", metavar="URL", help="ah://HOST:PORT[/JOB].")
    ],
    token_file: TokenFileOption = None,
    tls_dir: TlsDirOption = None,
    tls_ca: TlsCaOption = None,
    tls_cert: TlsCertOption = None,
    tls_key: TlsKeyOption = None,
    insecure: InsecureOption = False,
    use: Annotated[bool, typer.Option("--use", help="Make it the current one too.")] = False,
) -> None:
    """Make a context, or replace it. Files are kept by path, and need not be there yet.

    Those of --tls-dir are: the context has their paths.
    """
    from allhands.coordinator.endpoint import parse_url

    if not name or not name.isprintable() or name != "".join(name.split()) or name[0] == "-":
        raise typer.BadParameter(f"a context's name holds no space, unlike {name!r}")
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("a certificate and its key go together: --tls-cert, --tls-key")
    with _explain():
        parse_url(coordinator)
        folder = Context(coordinator) if tls_dir is None else _list_files(coordinator, tls_dir)
        made = Context(
            coordinator,
            token_file=_make_path(token_file) or folder.token_file,
            tls_ca=_make_path(tls_ca) or folder.tls_ca,
            tls_cert=_make_path(tls_cert) or folder.tls_cert,
            tls_key=_make_path(tls_key) or folder.tls_key,
            insecure=insecure,
        )
        known = load_contexts(os.environ).put(name, made)
        save_contexts(known.use(name) if use else known, os.environ)


@context_app.command("use")
def use(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", autocompletion=complete_contexts, show_default=False),
    ] = None,
    none: Annotated[
        bool, typer.Option("--none", help="No context: your coordinator on this host.")
    ] = False,
) -> None:
    """Make a context the current one, which all commands but `run` take where none is named."""
    if (name is None) != none:
        raise typer.BadParameter("give the NAME of a context, or --none")
    with _explain():
        save_contexts(load_contexts(os.environ).use(name), os.environ)


@context_app.command("delete")
def delete(name: _Name) -> None:
    """Delete a context; the files that it names stay."""
    with _explain():
        save_contexts(load_contexts(os.environ).remove(name), os.environ)


@contextmanager
def _explain() -> Iterator[None]:
    """Turn errors of contexts into those of wrong usage."""
    try:
        yield
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _make_path(file: Path | None) -> str | None:
    return None if file is None else os.path.abspath(file.expanduser())


def _list_files(coordinator: str, directory: Path) -> Context:
    """Return a context of the files in a directory of TLS files."""
    found = find_tls_directory(directory.expanduser(), "--tls-dir")
    token = found.token if os.path.isfile(found.token) else None
    return Context(coordinator, token, found.authorities, found.certificate, found.key)


def _make_fields(known: Contexts, name: str) -> dict[str, object]:
    return {"name": name, "is_current": name == known.current, **asdict(known.find(name))}


def _describe(known: Contexts) -> list[Section]:
    if not known.contexts:
        return [
            f"no contexts in {locate_contexts(os.environ)}: make one with `allhands context set "
            "NAME --coordinator ah://HOST:PORT`"
        ]
    table = Table(
        ("CURRENT", "left"),
        ("NAME", "left"),
        ("COORDINATOR", "left"),
        ("TOKEN FILE", "left"),
        ("TLS CA", "left"),
        ("TLS CERT", "left"),
        ("INSECURE", "left"),
        wide=("TOKEN FILE", "TLS CA", "TLS CERT", "INSECURE"),
    )
    for name, one in sorted(known.contexts.items()):
        files = (path or "-" for path in (one.token_file, one.tls_ca, one.tls_cert))
        mark = "*" if name == known.current else ""
        table.add_row(mark, name, one.url, *files, "yes" if one.insecure else "no")
    return [table]
