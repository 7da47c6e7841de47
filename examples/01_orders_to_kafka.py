"""A shop stores an order and its event in one transaction; a relay sends the event to Kafka; billing acts on it once.

    python examples/01_orders_to_kafka.py localhost:9092 orders

The topic must exist (or your broker must create topics by itself). Everything else is made here, in a SQLite file of its own.
"""

import json
import sys
import tempfile
from pathlib import Path

from confluent_kafka import Consumer, TopicPartition
from sqlalchemy import String, create_engine, func, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from outbox_consumer import IdempotentConsumer
from outbox_publisher import Outbox, PublisherSettings, Relay, configure_sqlite


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    item: Mapped[str] = mapped_column(String(50))


class Invoice(Base):
    __tablename__ = "invoices"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int]


def main(bootstrap: str, topic: str, folder: Path) -> None:
    settings = PublisherSettings(
        database_url=f"sqlite:///{folder / 'shop.db'}",
        name="shop",
        events={"order-created": {"topic": topic}},
        sender={"type": "kafka", "kafka": {"bootstrap_servers": bootstrap}},
    )
    engine = configure_sqlite(create_engine(settings.require_database_url()))
    Base.metadata.create_all(engine)
    relay = Relay(settings)  # creates its tables; in production it is a process: `outbox-publisher run`

    # 1. The service: the order and its event, both or neither.
    outbox = Outbox(settings)
    for item in ("book", "lamp", "chair"):
        with Session(engine) as session, session.begin():
            order = Order(item=item)
            session.add(order)
            session.flush()  # the key needs order.id
            outbox.publish(session, "order-created", {"order_id": order.id, "item": item}, key=order.id)

    # 2. The relay: what was committed goes to Kafka.
    print("relayed:", relay.run_once().delivered)
    relay.close()

    # 3. Another service: billing, once per event, however often Kafka delivers it.
    billing = IdempotentConsumer(sessionmaker(engine), name="billing")

    @billing.idempotent
    def bill(session: Session, message) -> None:  # noqa: ANN001 - a confluent_kafka.Message
        session.add(Invoice(order_id=json.loads(message.value())["order_id"]))

    for message in read_three(bootstrap, topic):
        bill(message)
        bill(message)  # the broker delivers it again; nothing happens
    with Session(engine) as session:
        print("invoices:", session.scalar(select(func.count()).select_from(Invoice)))
    engine.dispose()


def read_three(bootstrap: str, topic: str) -> list:
    client = Consumer({"bootstrap.servers": bootstrap, "group.id": "billing", "enable.auto.commit": False})
    partitions = client.list_topics(topic, timeout=10).topics[topic].partitions
    client.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    messages = client.consume(3, timeout=20)
    client.close()
    return messages


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(sys.argv[1], sys.argv[2], Path(folder))
