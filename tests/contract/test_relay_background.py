"""A relay within another program: started and stopped often, it leaves nothing behind."""

import asyncio
import threading
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from outbox_publisher import Relay
from outbox_publisher.senders import MemorySender
from outbox_shared.state import RELAY
from tests.consuming import eventually

SESSIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND id <> connection_id()",
}


def our_threads():
    """A relay's. The thread that tells of what was published ends with the publisher's engine."""
    names = [thread.name for thread in threading.enumerate() if thread.name.startswith("outbox-")]
    return [name for name in names if name != "outbox-notifier" and not name.startswith("outbox-cache")]


def open_files():
    """Sockets and files of this process: all that a connection is."""
    return len(list(Path("/proc/self/fd").iterdir()))


def other_sessions(database):
    """How many connections the server knows of, apart from the one that asks."""
    if database.engine.dialect.name == "sqlite":
        return 0
    asking = create_engine(database.engine.url, poolclass=NullPool)
    with asking.connect() as connection:
        return connection.execute(text(SESSIONS[connection.dialect.name])).scalar_one()


def heartbeats(database):
    with database.engine.connect() as connection:
        return len(database.store.state.rows(connection, RELAY))


@pytest.fixture
def settings(outbox_database):
    return outbox_database.settings(
        defaults={"topic": "t", "fixed-delay": "5ms"}, tables={"auto-create": False}, name="shop"
    )


@pytest.mark.parametrize("times", [20, pytest.param(100, marks=pytest.mark.full)])
def test_starts_and_stops_leave_nothing_behind(outbox_database, settings, times):
    # given a relay that has been there once, so that everything is loaded
    with Relay(settings, sender=MemorySender()).background():
        pass
    outbox_database.engine.dispose()
    eventually(lambda: other_sessions(outbox_database) == 0)
    threads, files = our_threads(), open_files()
    assert threads == []

    # when relays come and go, each with an engine of its own; every tenth has something to do
    sender = MemorySender()
    for number in range(times):
        with Relay(settings, sender=sender).background():
            if number % 10 == 0:
                outbox_database.publish(1)
                eventually(lambda count=number // 10 + 1: outbox_database.statuses() == {"PROCESSED": count})

    # then no thread, no connection, no heartbeat and no claim is left
    assert len(sender.sent) == times // 10
    assert our_threads() == []
    assert (heartbeats(outbox_database), outbox_database.claims()) == (0, 0)
    outbox_database.engine.dispose()
    eventually(lambda: other_sessions(outbox_database) == 0)
    assert open_files() <= files


def test_an_engine_that_was_given_stays_open_and_gets_its_connections_back(outbox_database):
    relay = outbox_database.relay(defaults={"topic": "t", "fixed-delay": "5ms"})

    with relay.background():
        outbox_database.publish(1)
        eventually(lambda: outbox_database.statuses() == {"PROCESSED": 1})

    assert outbox_database.engine.pool.checkedout() == 0
    assert outbox_database.statuses() == {"PROCESSED": 1}


def test_an_application_may_relay_in_its_lifespan(outbox_database, settings):
    """As web frameworks have it: an async context around the application's whole life, which the relay never blocks."""
    sender = MemorySender()

    @asynccontextmanager
    async def lifespan():
        with Relay(settings, sender=sender).background() as relay:
            yield relay

    async def serve():
        async with lifespan():
            outbox_database.publish(3)
            for _ in range(4000):
                await asyncio.sleep(0.005)
                if len(sender.sent) == 3:
                    break

    asyncio.run(serve())

    assert len(sender.sent) == 3
    assert outbox_database.statuses() == {"PROCESSED": 3}
    assert our_threads() == []


def test_an_application_that_fails_stops_its_relay_too(outbox_database, settings):
    with (
        pytest.raises(RuntimeError, match="the application's own"),
        Relay(settings, sender=MemorySender()).background(),
    ):
        raise RuntimeError("the application's own")

    assert our_threads() == []
    assert heartbeats(outbox_database) == 0


def test_several_relays_may_be_in_one_process(outbox_database, settings):
    senders = [MemorySender() for _ in range(3)]
    with (
        Relay(settings, sender=senders[0]).background(),
        Relay(settings, sender=senders[1]).background(),
        Relay(settings, sender=senders[2]).background(),
    ):
        outbox_database.publish(30)
        eventually(lambda: outbox_database.statuses() == {"PROCESSED": 30})

    assert len({event.id for sender in senders for event in sender.sent}) == 30
    assert sum(len(sender.sent) for sender in senders) == 30
    assert our_threads() == []


def test_a_relay_that_is_never_started_leaves_nothing_either(outbox_database, settings):
    outbox_database.engine.dispose()  # while another connection is open, SQLite puts off closing a file
    files = open_files()

    with closing(Relay(settings, sender=MemorySender())) as relay:
        relay.run_once()
        assert open_files() > files

    assert our_threads() == []
    assert open_files() <= files
