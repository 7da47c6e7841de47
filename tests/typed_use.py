"""How publishing and consuming look to a type checker: `make lint` reads this file, nothing runs it.

Each `type: ignore` stands where a mistake must be found; one that finds nothing is itself an error.
"""

import asyncio
from dataclasses import dataclass
from typing import Any, assert_type

from sqlalchemy.engine import Engine
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession
from sqlalchemy.orm import Session

from outbox_consumer import AsyncIdempotentConsumer, IdempotentConsumer, Outcome, Status
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


class Message:
    """Of some broker's client."""

    headers: dict[str, str]
    order: int


def charge(session: Session, message: Message) -> int:
    return message.order


def charge_all(session: Session, messages: list[Message]) -> str:
    return f"{len(messages)} charged"


async def charge_async(session: AsyncSession, message: Message) -> int:
    return message.order


async def charge_all_async(session: AsyncSession, messages: list[Message]) -> str:
    return f"{len(messages)} charged"


def consuming(engine: Engine, session: Session, message: Message, messages: list[Message]) -> None:
    consumer = IdempotentConsumer(engine, name="billing")
    assert_type(consumer.consume(message, charge), Outcome[int])
    assert_type(consumer.consume(message, lambda session, message: message.order), Outcome[int])
    assert_type(consumer.consume(message, lambda session: f"{session}"), Outcome[str])
    assert_type(consumer.consume(message, lambda: 7.0), Outcome[float])
    assert_type(consumer.consume_batch(messages, charge_all), list[Outcome[str]])
    assert_type(consumer.consume_batch(iter(messages), lambda session, fresh: fresh[0].order), list[Outcome[int]])
    outcome = consumer.consume_batch(messages, charge_all, on_error="bisect")[0]
    assert_type(outcome.result, str | None)
    assert_type(outcome.error, Exception | None)
    assert_type(outcome.status, Status)
    assert_type(consumer.claim(session, message), bool)
    assert_type(consumer.claim(from_psycopg(7), message), bool)
    assert_type(consumer.claim_batch(session, messages), list[Message])
    consumer.consume("text", charge)  # type: ignore[arg-type]
    consumer.consume_batch(messages, charge)  # type: ignore[arg-type]
    consumer.consume_batch(messages, charge_all, on_error="skip")  # type: ignore[call-overload]
    consumer.claim(message, session)  # type: ignore[arg-type]
    with consumer as same:
        assert_type(same, IdempotentConsumer)

    @consumer.idempotent
    def on_order(session: Session, message: Message) -> int:
        return message.order

    @consumer.idempotent(session="db")
    def on_other(record: Message, db: Session) -> str:
        return "done"

    assert_type(on_order(message), int | None)
    on_order("text")  # type: ignore[arg-type]


async def consuming_async(engine: AsyncEngine, session: AsyncSession, message: Message, many: list[Message]) -> None:
    consumer = AsyncIdempotentConsumer(engine, name="billing")
    assert_type(await consumer.consume(message, charge_async), Outcome[int])
    assert_type(await consumer.consume(message, lambda session, order: charge_async(session, message)), Outcome[int])
    assert_type(await consumer.consume_batch(many, charge_all_async, on_error="bisect"), list[Outcome[str]])
    assert_type(await consumer.claim(session, message), bool)
    assert_type(await consumer.claim_batch(session, many), list[Message])
    await consumer.consume(message, charge)  # type: ignore[arg-type]
    await consumer.claim(Session(), message)  # type: ignore[arg-type]

    @consumer.idempotent
    async def on_order(session: AsyncSession, message: Message) -> int:
        return message.order

    class Billing:
        @consumer.idempotent
        async def on_order(self, session: AsyncSession, message: Message) -> int:
            return message.order

    assert_type(await on_order(message), int | None)
    assert_type(await Billing().on_order(message), int | None)
    await on_order("text")  # type: ignore[arg-type]
    async with consumer as same:
        assert_type(same, AsyncIdempotentConsumer)
