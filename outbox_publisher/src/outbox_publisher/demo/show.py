"""The story that the demo tells, scene by scene. It returns 0 only if the ledger balances."""

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import typer
from sqlalchemy import func, select
from sqlalchemy.engine import Engine

from outbox_consumer import identify
from outbox_publisher import PublisherSettings
from outbox_publisher.demo.embedded_kafka import embedded_kafka, read_topic
from outbox_publisher.demo.ledger import Ledger
from outbox_publisher.demo.relay_process import RelayProcess
from outbox_publisher.demo.services import EVENT, TOO_LARGE, TOPIC, CardDeclined, Shipping, Shop
from outbox_publisher.schema import create_tables
from outbox_publisher.store import EventStore, store_for
from outbox_shared.database import reading

DECLINED_EVERY = 5
PATIENCE = 40.0
KILLS = 20

SETTINGS = """\
outbox:
  database-url: {database_url}
  publisher:
    name: shop
    max-payload: 2000000
    window: 1                      # one batch after the other, so that there is a middle to be killed in
    lease: 5s                      # what a killed relay held is free again after this
    stuck-recovery:
      fixed-delay: 1s
    sender:
      type: kafka
      publish-timeout: 2s
      kafka:
        bootstrap-servers: {bootstrap}
    defaults:
      batch-size: 25
      fixed-delay: 100ms
    events:
      order-placed:
        topic: orders
"""


class DemoFailed(Exception):
    """A scene did not play; the message says which."""


def play(*, orders: int, keep: bool) -> int:
    folder = Path(tempfile.mkdtemp(prefix="outbox-demo-"))
    try:
        ledger = _play(folder, orders)
    except DemoFailed as failure:
        typer.echo(f"\nThe demo stopped: {failure}")
        return 1
    finally:
        if keep:
            typer.echo(f"\nThe two databases, the settings and the relay's log are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    typer.echo(f"\n{ledger}\n")
    for mistake in ledger.mistakes():
        typer.echo(f"  DOES NOT BALANCE: {mistake}")
    return 1 if ledger.mistakes() else 0


def _play(folder: Path, orders: int) -> Ledger:
    database_url = f"sqlite:///{folder / 'shop.db'}"
    with embedded_kafka() as bootstrap:
        _say(
            f"Kafka is at {bootstrap}: librdkafka's mock cluster inside this process, in memory only, nothing installed."
        )
        settings = PublisherSettings(
            database_url=database_url, name="shop", events={EVENT: {"topic": TOPIC}}, max_payload=2_000_000
        )
        shop = Shop(database_url, settings)
        create_tables(shop.engine, settings.tables.names)
        store = store_for("sqlite", settings.tables.names)
        takings = _open_the_shop(shop, orders)

        relay = RelayProcess(folder, SETTINGS.format(database_url=database_url, bootstrap=bootstrap))
        try:
            _kill_one_in_the_middle(relay, shop.engine, store)
            _let_the_next_one_finish(relay, shop.engine, store)
        finally:
            relay.stop()
        dead = _dead_letters(shop.engine, store)
        return _deliver_everything_twice(folder, bootstrap, takings, dead)


@dataclass(frozen=True, slots=True)
class Takings:
    """What the shop did: the ids of the events that it committed, the one that cannot be sent, and how many it rolled back."""

    published: set[UUID]
    poison: UUID
    rolled_back: int


def _open_the_shop(shop: Shop, orders: int) -> Takings:
    published: set[UUID] = set()
    rolled_back = 0
    for number in range(1, orders + 1):
        try:
            published.add(shop.place_order(f"item {number}", declined=number % DECLINED_EVERY == 0))
        except CardDeclined:
            rolled_back += 1
    poison = shop.place_order("grand piano", note="x" * TOO_LARGE)
    _say(
        f"The shop took {orders + 1} orders and rolled {rolled_back} of them back after publishing. One event is too large for Kafka."
    )
    return Takings(published | {poison}, poison, rolled_back)


def _kill_one_in_the_middle(relay: RelayProcess, engine: Engine, store: EventStore) -> None:
    """A kill counts only if the database shows that the victim still held rows when it was dead."""
    for _ in range(KILLS):
        pid = relay.start()
        _wait_for(
            "a batch in the middle",
            lambda: _rows(engine, store, "PROCESSED") > 0 < _rows(engine, store, "IN_PROCESS"),
            relay,
        )
        relay.kill()
        held = _rows(engine, store, "IN_PROCESS")
        if held:
            _say(f"The relay (process {pid}) was killed with -9 while it held {held} events.")
            return
    raise DemoFailed("no kill hit a relay in the middle of a batch; try again with more --orders")


def _let_the_next_one_finish(relay: RelayProcess, engine: Engine, store: EventStore) -> None:
    began = time.monotonic()
    pid = relay.start()
    _say(f"A second relay (process {pid}) goes on; it gets the dead one's events when their lease of 5 s is over.")
    _wait_for("the outbox to become empty", lambda: _rows(engine, store, "IN_PROCESS", "PENDING") == 0, relay)
    _say(f"Everything was relayed {time.monotonic() - began:.1f} s later.")


def _dead_letters(engine: Engine, store: EventStore) -> set[UUID]:
    letters = store.tables.dead_letters
    with reading(engine) as connection:
        dead = connection.execute(select(letters.c.id, letters.c.key, letters.c.reason, letters.c.last_error)).all()
    for letter in dead:
        _say(f"Order {letter.key} is a dead letter: {letter.reason} ({letter.last_error}).")
    return {letter.id for letter in dead}


def _deliver_everything_twice(folder: Path, bootstrap: str, takings: Takings, dead: set[UUID]) -> Ledger:
    shipping = Shipping(f"sqlite:///{folder / 'shipping.db'}")
    messages = read_topic(bootstrap, TOPIC)
    deliveries = [*messages, *messages]
    for message in deliveries:
        shipping.receive(message)
    _say(f"Kafka holds {len(messages)} messages. The consumer got every one of them twice.")
    return Ledger(
        published=takings.published,
        rolled_back=takings.rolled_back,
        poison=takings.poison,
        messages=[identify(message).event_id for message in messages],
        handed_over=len(deliveries),
        effects=shipping.effects(),
        dead_letters=dead,
    )


def _rows(engine: Engine, store: EventStore, *statuses: str) -> int:
    events = store.tables.events
    with reading(engine) as connection:
        return connection.execute(select(func.count()).where(events.c.status.in_(statuses))).scalar_one()


def _wait_for(what: str, condition: Callable[[], bool], relay: RelayProcess) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until or not relay.running():
            raise DemoFailed(f"waited in vain for {what}. The relay's last words:\n{relay.log_tail()}")
        time.sleep(0.005)


def _say(line: str) -> None:
    typer.echo(f"* {line}")
