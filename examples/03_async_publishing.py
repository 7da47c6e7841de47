"""The same in an async service: AsyncSession, `await outbox.publish(…)`, and an async function that publishes what it returns.

pip install 'outbox-publisher[async]' aiosqlite
python examples/03_async_publishing.py
"""

import asyncio
import tempfile
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from outbox_publisher import AsyncOutbox, PublisherSettings, Relay, configure_sqlite
from outbox_publisher.senders import MemorySender


async def main(folder: Path) -> None:
    settings = PublisherSettings(
        database_url=f"sqlite+aiosqlite:///{folder / 'shop.db'}", name="shop", defaults={"topic": "orders"}
    )
    broker = MemorySender()
    relay = Relay(
        settings, sender=broker
    )  # sync, usually a process of its own; it creates the tables and knows the URL's sync driver
    engine = create_async_engine(settings.require_database_url())
    configure_sqlite(engine.sync_engine)
    sessions, outbox = async_sessionmaker(engine), AsyncOutbox(settings)

    @outbox.publishes("order-placed", key=lambda order: order["id"])
    async def place_order(session: AsyncSession, number: int) -> dict[str, int]:
        return {"id": number}

    async with sessions.begin() as session:
        await place_order(session, 1)
        await outbox.publish(session, "order-paid", {"id": 1}, key=1)
        await outbox.publish_batch(session, "line-added", [{"line": n} for n in range(3)])
    await engine.dispose()

    relay.run_once()
    relay.close()
    print("sent:", ", ".join(event.event_type for event in broker.sent))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
