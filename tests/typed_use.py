"""How publishing looks to a type checker: `make lint` reads this file, nothing runs it.

Each `type: ignore` stands where a mistake must be found; one that finds nothing is itself an error.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from outbox_publisher import AsyncOutbox, EventDraft, Outbox, Published, PublishedBatch, PublisherSettings, from_psycopg

outbox, async_outbox = Outbox(PublisherSettings()), AsyncOutbox(PublisherSettings())


@dataclass
class Order:
    id: int


def publishing(session: Session, connection: Any) -> None:
    assert_type(outbox.publish(session, "order-created", {}, key=1, delay="10m"), Published)
    assert_type(outbox.publish(from_psycopg(connection), EventDraft("order-created", {})), Published)
    assert_type(outbox.publish_batch(session, "line-added", [1], key=lambda line: line), PublishedBatch)
    assert_type(outbox.cancel(session, "id"), bool)
    outbox.publish("order-created", {})  # type: ignore[call-overload]
    outbox.publish(session, "order-created", {}, key=1.5)  # type: ignore[call-overload]
    outbox.publish(session, "order-created", {}, kee=1)  # type: ignore[call-overload]
    outbox.publish(session, "order-created")  # type: ignore[call-overload]
    outbox.publish(AsyncSession(), "order-created", {})  # type: ignore[call-overload]
    outbox.publish_batch(session, "line-added", [1], event_id="one for all")  # type: ignore[call-overload]


async def publishing_async(session: AsyncSession) -> None:
    assert_type(await async_outbox.publish(session, "order-created", {}, key=1), Published)
    await async_outbox.publish(Session(), "order-created", {})  # type: ignore[call-overload]


@outbox.publishes("order-created", key=lambda order: order.id)
def place_order(session: Session, number: int) -> Order:
    return Order(number)


@async_outbox.publishes("order-created", many=True)
async def add_lines(session: AsyncSession, number: int) -> list[int]:
    return [number]


class Service:
    @outbox.publishes("order-created", session=lambda self: self.session)
    def place(self, number: int) -> Order:
        return Order(number)


def decorated(session: Session) -> None:
    assert_type(place_order(session, 1), Order)
    assert_type(Service().place(1), Order)
    place_order(session, "one")  # type: ignore[arg-type]
    Service().place()  # type: ignore[call-arg]
    outbox.publishes("order-created", kee=1)  # type: ignore[call-arg]


async def decorated_async(session: AsyncSession) -> None:
    assert_type(await asyncio.create_task(add_lines(session, 1)), list[int])
    await add_lines(session)  # type: ignore[call-arg]
