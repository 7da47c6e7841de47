"""Functions decorated with @idempotent, called by the real frameworks: they fill what they know, and we find the message among it."""

import asyncio
from typing import Any
from uuid import UUID

from celery import Celery
from faststream.kafka import KafkaBroker, KafkaMessage, TestKafkaBroker
from sqlalchemy import text
from sqlalchemy.orm import Session

from outbox_consumer import identify
from tests.client_messages import pika_callback
from tests.consuming import ConsumingDatabase

EVENT_ID = UUID("0190f0f0-0000-7000-8000-000000000001")
HEADERS = {"outbox_event_id": str(EVENT_ID), "outbox_event_type": "order-created"}


def book(session: Session, event_id: UUID) -> str:
    session.execute(text("INSERT INTO effects VALUES (:id)"), {"id": str(event_id)})
    return "booked"


def test_a_celery_task(consuming_on_sqlite: ConsumingDatabase):
    consumer, app = consuming_on_sqlite.consumer(), Celery("identify", broker="memory://", set_as_current=False)

    @app.task(bind=True, name="bill")
    @consumer.idempotent
    def bill(self: Any, session: Session, order: int) -> tuple[str, int]:
        return book(session, identify(self.request).event_id), order

    results = [bill.apply((7,), headers=HEADERS).get() for _ in range(2)]

    assert results == [("booked", 7), None]
    assert consuming_on_sqlite.effects() == [str(EVENT_ID)]


def test_a_faststream_subscriber(consuming_on_sqlite: ConsumingDatabase):
    consumer, broker, results = consuming_on_sqlite.consumer(), KafkaBroker(), []

    @broker.subscriber("orders")
    @consumer.idempotent
    def on_order(session: Session, order: dict[str, int], message: KafkaMessage) -> None:
        results.append((book(session, identify(message).event_id), order))

    async def deliver_twice() -> None:
        async with TestKafkaBroker(broker) as delivering:
            for _ in range(2):
                await delivering.publish({"total": 7}, "orders", headers=HEADERS)

    asyncio.run(deliver_twice())

    assert results == [("booked", {"total": 7})]
    assert consuming_on_sqlite.effects() == [str(EVENT_ID)]


def test_pikas_four_arguments(consuming_on_sqlite: ConsumingDatabase):
    consumer = consuming_on_sqlite.consumer()

    @consumer.idempotent
    def on_order(session: Session, channel: Any, method: Any, properties: Any, body: bytes) -> tuple[str, str, bytes]:
        return book(session, identify(properties).event_id), method.routing_key, body

    arguments = pika_callback([(name, value.encode()) for name, value in HEADERS.items()])

    assert on_order(*arguments) == ("booked", "order-created", arguments[3])
    assert on_order(*arguments) is None
    assert consuming_on_sqlite.effects() == [str(EVENT_ID)]
