"""`outbox-consumer`: what an operator does for the consuming side."""

from typing import Annotated

import typer

from outbox_consumer.schema import consumer_tables
from outbox_consumer.settings import ConsumerSettings
from outbox_shared import __version__
from outbox_shared.commands import created_or_there, run_command
from outbox_shared.database import make_engine
from outbox_shared.tables import create_missing

app = typer.Typer(
    name="outbox-consumer",
    help="The consuming side of the transactional outbox. Settings come from OUTBOX_CONFIG or ./outbox.yml, then OUTBOX_….",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outbox-consumer {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Keeps `init-db` a command of its own while it is the only one."""


@app.command("init-db")
def init_db() -> None:
    """Create the consumer's tables where they are missing. Can be run again; changes nothing that is there."""
    settings = ConsumerSettings.load()
    tables = consumer_tables(settings.tables.names)
    engine = make_engine(settings.require_database_url(), "outbox-consumer")
    try:
        created = create_missing(engine, tables)
    finally:
        engine.dispose()
    typer.echo("\n".join(created_or_there(created, [table.name for table in tables])))


def main() -> None:
    """The console script."""
    run_command("outbox-consumer", app)
