"""The demo's two services, each with a database of its own: a shop that publishes and a shipping service that consumes."""

import json
from uuid import UUID

from confluent_kafka import Message
from sqlalchemy import String, create_engine, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from outbox_consumer import IdempotentConsumer, identify
from outbox_publisher import Outbox, PublisherSettings
from outbox_shared.sqlite import configure_sqlite

EVENT = "order-placed"
TOPIC = "orders"
TOO_LARGE = 1_500_000
"""Bytes of the poison event: the shop may store it, no Kafka with default settings takes it."""


class ShopBase(DeclarativeBase):
    pass


class Order(ShopBase):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(String(50))


class ShippingBase(DeclarativeBase):
    pass


class Parcel(ShippingBase):
    """The event's id is not unique on purpose: a second effect would show."""

    __tablename__ = "parcels"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]
    event_id: Mapped[UUID]


class CardDeclined(Exception):
    """The shop's reason to roll an order back."""


class Shop:
    def __init__(self, database_url: str, settings: PublisherSettings) -> None:
        self.engine: Engine = configure_sqlite(create_engine(database_url))
        ShopBase.metadata.create_all(self.engine)
        self._sessions = sessionmaker(self.engine)
        self._outbox = Outbox(settings)

    def place_order(self, item: str, *, declined: bool = False, note: str = "") -> UUID:
        """The order and its event, in one transaction: both or neither. Returns the event's id."""
        with self._sessions.begin() as session:
            order = Order(item=item)
            session.add(order)
            session.flush()
            payload = {"order_id": order.id, "item": item, "note": note}
            published = self._outbox.publish(session, EVENT, payload, key=order.id)
            if declined:
                raise CardDeclined
        return published.id


class Shipping:
    def __init__(self, database_url: str) -> None:
        self._engine = configure_sqlite(create_engine(database_url))
        ShippingBase.metadata.create_all(self._engine)
        self.consumer = IdempotentConsumer(sessionmaker(self._engine), name="shipping")

    def receive(self, message: Message) -> None:
        self.consumer.consume(message, self._pack)

    def _pack(self, session: Session, message: Message) -> None:
        order_id = json.loads(message.value() or b"")["order_id"]
        session.add(Parcel(order_id=order_id, event_id=identify(message).event_id))

    def effects(self) -> list[UUID]:
        """The event of each parcel."""
        with Session(self._engine) as session:
            return list(session.scalars(select(Parcel.event_id)))
