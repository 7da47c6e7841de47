"""`events`: what is stored, one event at a time."""

from typing import Annotated
from uuid import UUID

import typer

from outbox_publisher.operations import operations
from outbox_publisher.settings import PublisherSettings
from outbox_shared.errors import ConfigurationError

app = typer.Typer(help="Stored events.", no_args_is_help=True)

NOT_ALL = 1
"""The exit code of `events retry` where an event that was named is not FAILED."""


@app.callback()
def _group() -> None:
    """Stored events."""


@app.command()
def retry(
    ids: Annotated[
        list[UUID] | None, typer.Argument(metavar="ID", help="Events that are FAILED.", show_default=False)
    ] = None,
    event_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="Every FAILED event of a type.", show_default=False)
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every FAILED event.")] = False,
) -> None:
    """Send FAILED events again, with the same ids and a fresh budget. Where there is a dead-letter queue, they are there instead."""
    if (bool(ids), event_type is not None, everything).count(True) != 1:
        raise ConfigurationError("say which events: their ids, --type TYPE or --all")
    with operations(PublisherSettings.load_for_cli()) as it:
        if not ids:
            typer.echo(_to_be_sent(it.retry_all(event_type)))
            return
        retried = it.retry(ids)
    typer.echo(_to_be_sent(retried.count))
    for one, what in retried.others.items():
        typer.echo(f"{one} is not FAILED: {what}", err=True)
    if retried.others:
        raise typer.Exit(NOT_ALL)


def _to_be_sent(count: int) -> str:
    return f"{count} {'event is' if count == 1 else 'events are'} to be sent again"
