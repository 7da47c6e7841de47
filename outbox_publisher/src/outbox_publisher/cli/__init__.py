"""`outbox-publisher`: what an operator does for the publishing side."""

import logging
from contextlib import nullcontext
from typing import Annotated

import typer

from outbox_publisher import __version__
from outbox_publisher.cli import events, operate
from outbox_publisher.relay import Relay
from outbox_publisher.schema import PUBLISHER
from outbox_publisher.settings import PublisherSettings
from outbox_shared.commands import run_command
from outbox_shared.errors import MissingDependency
from outbox_shared.http import health_page, parse_address, serving
from outbox_shared.schema_commands import create_tables, schema_commands

app = typer.Typer(
    name="outbox-publisher",
    help="Transactional outbox: relay stored events to the broker, and look after them.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.add_typer(schema_commands(PUBLISHER, PublisherSettings.load_for_cli), name="schema")
app.add_typer(events.app, name="events")


def main() -> None:
    """The console script."""
    run_command("outbox-publisher", app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"outbox-publisher {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    del version


@app.command("init-db")
def init_db() -> None:
    """Create the tables that are missing. Safe to repeat, and from several machines at once."""
    create_tables(PUBLISHER, PublisherSettings.load_for_cli())


@app.command()
def run(
    http: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Answer /livez and /readyz there.", show_default=False)
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Relay events until SIGTERM or Ctrl-C; a second one leaves at once."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    if http is not None:
        parse_address(http)  # a mistake there should not cost a start
    relay = Relay(PublisherSettings.load_for_cli())
    pages = {"/livez": lambda: health_page(relay.health.live()), "/readyz": lambda: health_page(relay.health.ready())}
    try:
        with nullcontext() if http is None else serving(http, pages) as url:
            if url is not None:
                logging.getLogger(__name__).info("%s/livez and %s/readyz answer", url, url)
            relay.run()
    finally:
        relay.close()


@app.command()
def demo(
    orders: Annotated[int, typer.Option(min=20, help="How many orders the shop takes.")] = 200,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the demo's database file where it is.")] = False,
) -> None:
    """Watch the whole way on this machine: a shop, a relay that is killed, messages that arrive twice, and a ledger at the end."""
    try:
        from outbox_publisher.demo import show  # noqa: PLC0415 - the demo plays both sides and needs its extra
    except ModuleNotFoundError:
        raise MissingDependency("the demo", "outbox-publisher[demo]") from None
    raise SystemExit(show.play(orders=orders, keep=keep))


operate.add_to(app)
