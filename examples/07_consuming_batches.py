"""A batch of messages in one transaction: duplicates are filtered, and a bad message is put aside while the others are committed.

python examples/07_consuming_batches.py
"""

import json
import tempfile
from pathlib import Path
from uuid import UUID

from sqlalchemy import create_engine, func, insert, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from outbox_consumer import IdempotentConsumer, Status, configure_sqlite


class Base(DeclarativeBase):
    pass


class Payment(Base):
    __tablename__ = "payments"
    id: Mapped[int] = mapped_column(primary_key=True)
    cents: Mapped[int]


class Message:
    """As a broker's client would hand it over."""

    def __init__(self, number: int, body: object) -> None:
        self.headers = {"outbox_event_id": str(UUID(int=number)), "outbox_event_type": "order-paid"}
        self.body = json.dumps(body)


def book_all(session: Session, messages: list[Message]) -> int:
    """One INSERT for all that are new. Called again with a part of them where one is bad."""
    session.execute(insert(Payment), [{"cents": json.loads(message.body)["cents"]} for message in messages])
    return len(messages)


def main(folder: Path) -> None:
    engine = configure_sqlite(create_engine(f"sqlite:///{folder / 'bank.db'}"))
    Base.metadata.create_all(engine)
    with IdempotentConsumer(sessionmaker(engine), name="bank") as consumer:
        first = [Message(n, {"cents": 100 * n}) for n in range(1, 4)]
        outcomes = consumer.consume_batch(first, book_all)
        print("first:", ", ".join(outcome.status for outcome in outcomes))

        # three come again, one is twice in the batch, and one is no payment
        second = [
            *first,
            Message(4, {"cents": 400}),
            Message(5, "???"),
            Message(6, {"cents": 600}),
            Message(6, {"cents": 600}),
        ]
        outcomes = consumer.consume_batch(second, book_all, on_error="bisect")
        print("second:", ", ".join(outcome.status for outcome in outcomes))
        for message, outcome in zip(second, outcomes, strict=True):
            if outcome.status is Status.FAILED:
                print(f"put aside: {message.body} ({type(outcome.error).__name__})")  # then acknowledge them all

    with Session(engine) as session:
        print("payments:", *session.execute(select(func.count(), func.sum(Payment.cents))).one())
    engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
