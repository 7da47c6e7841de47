"""Everything that publishing can do, on one SQLite file: batches, drafts, delays, ids of your own, cancel, the decorator, an envelope.

python examples/02_publishing.py
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine, select
from sqlalchemy.orm import Session

from outbox_publisher import EnvelopeSerializer, EventDraft, Outbox, PublisherSettings, configure_sqlite
from outbox_publisher.schema import create_tables
from outbox_publisher.store import store_for


@dataclass
class OrderPlaced:
    order_id: int
    total: str


def main(folder: Path) -> None:
    settings = PublisherSettings(
        database_url=f"sqlite:///{folder / 'shop.db'}", name="shop", defaults={"topic": "orders"}
    )
    engine = configure_sqlite(create_engine(settings.require_database_url()))
    create_tables(engine, settings.tables.names)  # in real life: outbox-publisher init-db
    outbox = Outbox(settings)

    @outbox.publishes("order-placed", key=lambda order: order.order_id)
    def place_order(session: Session, number: int) -> OrderPlaced:
        """Your change goes here; what it returns is the event."""
        return OrderPlaced(number, "9.90")

    with Session(engine) as session, session.begin():
        place_order(session, 7)
        lines = [{"order_id": 7, "sku": sku} for sku in ("apple", "pear")]
        batch = outbox.publish_batch(session, "line-added", lines, key=lambda line: line["order_id"])
        print(f"batch: {batch.stored} stored")

        reminder = outbox.publish(session, "payment-reminder", {"order_id": 7}, key=7, delay="24h")
        print(f"cancelled: {outbox.cancel(session, reminder.id)}")

        for _ in range(2):  # a retried request publishes once
            again = outbox.publish(session, "order-confirmed", {"order_id": 7}, key=7, event_id="confirm-7")
            print(f"confirmed: stored {again.stored}")

        outbox.publish_batch(
            session, [EventDraft("audit", {"what": "order"}, topic="audit", headers={"tenant": "acme"})]
        )
        enveloped = Outbox(settings, serializer=EnvelopeSerializer(actor="clerk-3"))
        enveloped.publish(session, "order-shipped", {"order_id": 7}, key=7, version=2)

    events = store_for("sqlite", settings.tables.names).tables.events
    with engine.connect() as connection:
        for row in connection.execute(select(events.c.event_type, events.c.key).order_by(events.c.seq)):
            print(f"stored: {row.event_type} key={row.key}")
    engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
