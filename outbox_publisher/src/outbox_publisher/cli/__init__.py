"""`outbox-publisher`: what an operator does for the publishing side."""

import gc
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Annotated

import typer

from outbox_publisher import __version__
from outbox_publisher.cli import events, operate
from outbox_publisher.relay import Relay
from outbox_publisher.relay.relay import check
from outbox_publisher.schema import PUBLISHER
from outbox_publisher.settings import PublisherSettings
from outbox_shared.commands import run_command
from outbox_shared.errors import MissingDependency
from outbox_shared.http import health_page, parse_address, serving
from outbox_shared.schema_commands import create_tables, schema_commands
from outbox_shared.supervisor import Ask, Supervisor, supervised

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
    workers: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes: one for each core that the relay shall use.")
    ] = 1,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Log more.")] = False,
) -> None:
    """Relay events until SIGTERM or Ctrl-C; a second one leaves at once."""
    logging.basicConfig(
        level=logging.DEBUG if verbose else logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    if http is not None:
        parse_address(http)  # a mistake there should not cost a start
    settings = PublisherSettings.load_for_cli()
    if workers > 1:
        check(settings)  # a mistake there should be told once
        command = [sys.executable, "-m", "outbox_publisher", "run", *(["--verbose"] if verbose else [])]
        supervisor = Supervisor(command, workers)
        with _probes(http, supervisor.ask):
            raise SystemExit(supervisor.run())
    relay = Relay(settings)
    try:
        with _probes(http, relay.health.ask), supervised(relay.health.ask, relay.stop):
            _spare_the_collector()
            relay.run()
    finally:
        relay.close()


def _spare_the_collector() -> None:
    """This process is ours alone. Its events come and go by thousands and form no cycles, and to look for some among everything that was
    ever imported took a quarter of the relay's time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)


@contextmanager
def _probes(http: str | None, ask: Ask) -> Iterator[None]:
    pages = {"/livez": lambda: health_page(ask("live")), "/readyz": lambda: health_page(ask("ready"))}
    with nullcontext() if http is None else serving(http, pages) as url:
        if url is not None:
            logging.getLogger(__name__).info("%s/livez and %s/readyz answer", url, url)
        yield


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
