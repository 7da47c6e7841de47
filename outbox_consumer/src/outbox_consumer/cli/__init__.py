"""`outbox-consumer`: what an operator does for the consuming side."""

from typing import Annotated

import typer

from outbox_consumer.cli import operate
from outbox_consumer.schema import CONSUMER
from outbox_consumer.settings import ConsumerSettings
from outbox_shared import __version__
from outbox_shared.commands import run_command
from outbox_shared.schema_commands import create_tables, schema_commands

app = typer.Typer(
    name="outbox-consumer",
    help="The consuming side of the transactional outbox. Settings come from OUTBOX_CONFIG or ./outbox.yml, then OUTBOX_….",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(schema_commands(CONSUMER, ConsumerSettings.load_for_cli), name="schema")


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
    del version


@app.command("init-db")
def init_db() -> None:
    """Create the consumer's tables where they are missing. Can be run again; changes nothing that is there."""
    create_tables(CONSUMER, ConsumerSettings.load_for_cli())


operate.add_to(app)


def main() -> None:
    """The console script."""
    run_command("outbox-consumer", app)
