"""`allhands page`: a link that opens the coordinator's page in a browser.

docs/output.md has the fields of its document, `PageLink`.
"""

from typing import Annotated

import typer

from allhands.cli.options import AnyJobArgument, ClientOptions, takes_client
from allhands.cli.render import Output, make_output_option, print_document


@takes_client
def page_command(
    job: AnyJobArgument = None,
    output: Annotated[
        Output, make_output_option(Output.TABLE, Output.JSON, Output.YAML)
    ] = Output.TABLE,
    *,
    client: ClientOptions,
) -> None:
    """Print a link that opens the page of the coordinator: its jobs, groups and ranks, live.

    It opens the page once, within a minute, with the rights of your token: keep it to yourself. The
    job, if one is named, is shown first. The coordinator needs an HTTP port (`allhands serve --http
    127.0.0.1:7071`).
    """
    with client.open(job) as control:
        link = control.page_link(control.job_name)
    if output.is_document:
        print_document("PageLink", {"url": link.url, "valid_seconds": link.seconds}, output)
        return
    typer.echo(link.url)
    typer.echo(f"allhands: for one browser, within {link.seconds:.0f} s", err=True)
