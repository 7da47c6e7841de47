"""The demo's two services, each with a database of its own: a shop that publishes and a shipping service that consumes."""

import json
from typing import Any

from confluent_kafka import Message
from sqlalchemy import String, create_engine, func, select
from sqlalchemy.engine import Engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from outbox_consumer import IdempotentConsumer
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
    """No unique order number on purpose: a second effect would show."""

    __tablename__ = "parcels"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


class CardDeclined(Exception):
    """The shop's reason to roll an order back."""


class Shop:
    def __init__(self, database_url: str, settings: PublisherSettings) -> None:
        self.engine: Engine = configure_sqlite(create_engine(database_url))
        ShopBase.metadata.create_all(self.engine)
        self._sessions = sessionmaker(self.engine)
        self._outbox = Outbox(settings)

    def place_order(self, item: str, *, declined: bool = False, note: str = "") -> None:
        """The order and its event, in one transaction: both or neither."""
        with self._sessions.begin() as session:
            order = Order(item=item)
            session.add(order)
            session.flush()
            self._outbox.publish(session, EVENT, {"order_id": order.id, "item": item, "note": note}, key=order.id)
            if declined:
                raise CardDeclined

    def orders(self) -> int:
        with Session(self.engine) as session:
            return session.scalar(select(func.count()).select_from(Order)) or 0


class Shipping:
    def __init__(self, database_url: str) -> None:
        self._engine = configure_sqlite(create_engine(database_url))
        ShippingBase.metadata.create_all(self._engine)
        self.consumer = IdempotentConsumer(sessionmaker(self._engine), name="shipping")

    def receive(self, message: Message) -> bool:
        """True if this delivery had an effect, False if it was a copy."""
        return bool(self.consumer.consume(message, self._pack))

    def _pack(self, session: Session, message: Any) -> None:
        session.add(Parcel(order_id=json.loads(message.value())["order_id"]))

    def parcels(self) -> tuple[int, int]:
        """How many there are, and for how many different orders."""
        with Session(self._engine) as session:
            counts = select(func.count(), func.count(Parcel.order_id.distinct())).select_from(Parcel)
            total, orders = session.execute(counts).one()
            return total, orders
