"""The same in an async program: an async handler, many messages at once, and a claim in a transaction of one's own.

pip install 'outbox-consumer[async]' aiosqlite
python examples/08_async_consuming.py
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox_consumer import AsyncIdempotentConsumer, configure_sqlite


class Base(DeclarativeBase):
    pass


class Parcel(Base):
    __tablename__ = "parcels"
    id: Mapped[int] = mapped_column(primary_key=True)
    order: Mapped[int]


def a_message(order: int) -> dict[str, Any]:
    """As a broker's client would hand it over: anything with headers."""
    return {"headers": {"outbox_event_id": str(UUID(int=order)), "outbox_event_type": "order-paid"}, "order": order}


async def main(folder: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{folder / 'shipping.db'}")
    configure_sqlite(engine.sync_engine)
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    sessions = async_sessionmaker(engine)
    consumer = AsyncIdempotentConsumer(sessions, name="shipping")

    @consumer.idempotent
    async def ship(session: AsyncSession, message: dict[str, Any]) -> str:
        session.add(Parcel(order=message["order"]))
        await session.flush()
        return f"parcel for order {message['order']}"

    # copies arrive at the same time; the second of each waits for the first, and does nothing
    results = await asyncio.gather(*(ship(a_message(order)) for order in (1, 2, 1, 2)))
    print("shipped:", ", ".join(sorted(result for result in results if result)))

    # in a transaction of one's own
    async with sessions.begin() as session:
        for message in await consumer.claim_batch(session, [a_message(2), a_message(3)]):
            session.add(Parcel(order=message["order"]))
            print("claimed:", message["order"])

    async with sessions() as session:
        print("parcels:", await session.scalar(select(func.count()).select_from(Parcel)))
    await consumer.close()
    await engine.dispose()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
