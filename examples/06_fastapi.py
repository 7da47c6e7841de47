"""A relay inside a FastAPI application: it starts with the application, and finishes what is under way when that stops.

python examples/06_fastapi.py

Handy for a small service. A relay of its own (`outbox-publisher run`) survives the application's restarts and takes nothing of its time.
"""

import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI
from fastapi.testclient import TestClient
from pydantic import BaseModel
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from outbox_publisher import Event, Handlers, HandlerSender, Outbox, PublisherSettings, Relay, configure_sqlite


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    customer: Mapped[str]


class NewOrder(BaseModel):
    customer: str


handlers = Handlers()
mailed = threading.Event()


@handlers.on("order-placed")
def send_mail(event: Event) -> None:
    print(f"mail to {event.json()['customer']}: thank you for order {event.key}")
    mailed.set()


def make_app(database_url: str) -> FastAPI:
    settings = PublisherSettings(
        database_url=database_url, name="shop", sender={"type": "handlers"}, defaults={"fixed_delay": "50ms"}
    )
    engine = configure_sqlite(create_engine(database_url))
    Base.metadata.create_all(engine)
    sessions, outbox = sessionmaker(engine), Outbox(settings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        sender = HandlerSender(handlers, settings.sender)
        with Relay(settings, sender=sender).background():  # on a thread of its own; leaves when its batch is settled
            yield
        sender.close()
        engine.dispose()

    app = FastAPI(lifespan=lifespan)

    def transaction() -> Iterator[Session]:
        with sessions.begin() as session:
            yield session

    @app.post("/orders", status_code=201)
    def place(new: NewOrder, session: Annotated[Session, Depends(transaction, scope="function")]) -> dict[str, int]:
        order = Order(customer=new.customer)
        session.add(order)
        session.flush()  # now it has an id
        outbox.publish(session, "order-placed", new, key=order.id)
        return {"id": order.id}

    return app


def main(folder: Path) -> None:
    with TestClient(make_app(f"sqlite:///{folder / 'shop.db'}")) as client:
        placed = client.post("/orders", json={"customer": "Ada"}).json()
        mailed.wait(10)
        print(f"placed: {placed}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
