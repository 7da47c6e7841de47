"""kill -9 of a service before, during and after its COMMIT: the change and its event are both there, or neither is."""

import json
import random
from collections import Counter
from collections.abc import Iterator

import pytest
from sqlalchemy import select, text

from tests.consuming import eventually
from tests.failure.killing import PATIENCE, Forge
from tests.fixtures import OutboxDatabase
from tests.publishing import ORDERS, database_behind

DRIVERS = ["sqlite", "postgresql", "mariadb", "aiosqlite", "psycopg-async", "asyncpg", "asyncmy"]
ROWS = 200  # a COMMIT of so many takes long enough to be met
LONGEST_WAIT = 0.003

OTHER_SESSIONS = {
    "postgresql": "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND backend_type = 'client backend' AND pid <> pg_backend_pid()",
    "mysql": "SELECT count(*) FROM information_schema.processlist WHERE db = database() AND id <> connection_id()",
}


class Writers(Forge):
    """The process that forks writers; see writer.py."""

    def start(self, driver: str, database: OutboxDatabase, *, rows: int, first: int = 0) -> None:
        """A writer whose transactions store the orders from `first * rows` on."""
        self.order(json.dumps({"driver": driver, "url": database.url, "rows": rows, "first": first}))


@pytest.fixture(scope="module")
def forge() -> Iterator[Writers]:
    writers = Writers("tests.failure.writer")
    yield writers
    writers.close()


@pytest.fixture
def writers(forge: Writers) -> Iterator[Writers]:
    yield forge
    forge.kill_what_lives()


@pytest.fixture
def database(driver: str, request: pytest.FixtureRequest) -> OutboxDatabase:
    return request.getfixturevalue(f"{database_behind(driver)}_outbox")


def other_sessions(database: OutboxDatabase) -> int:
    """Each look has a transaction of its own: in one, PostgreSQL shows the same sessions for ever."""
    query = OTHER_SESSIONS.get(database.engine.dialect.name)
    if query is None:  # SQLite has processes only, and this one is dead
        return 0
    with database.engine.connect() as connection:
        return connection.execute(text(query)).scalar_one()


def stored(database: OutboxDatabase) -> set[int]:
    """The orders, which are the same as those of the events; after the server has ended what the killed writer had open."""
    eventually(lambda: other_sessions(database) == 0, within=PATIENCE)
    key = database.store.tables.events.c.key
    with database.engine.connect() as connection:
        orders = list(connection.execute(select(ORDERS.c.id)).scalars())
        events = [int(found) for found in connection.execute(select(key)).scalars()]
    assert sorted(events) == sorted(orders)
    return set(orders)


pytestmark = [pytest.mark.slow, pytest.mark.parametrize("driver", DRIVERS)]


def test_killed_before_commit_leaves_neither(driver, database, writers):
    # given a writer that has written both and has not called COMMIT
    writers.start(driver, database, rows=1)
    writers.expect(b"w")

    # when it is killed
    assert writers.kill() == b""

    # then nothing of it is left, and the next writer finds its way free
    assert stored(database) == set()
    writers.start(driver, database, rows=1)
    writers.expect(b"w")


def test_killed_after_commit_leaves_both(driver, database, writers):
    # given a writer whose COMMIT has returned, and which is in its next transaction
    writers.start(driver, database, rows=1)
    writers.expect(b"w")
    writers.go()
    writers.expect(b"cdw")

    # when it is killed
    assert writers.kill() == b""

    # then the first is there, and of the second nothing
    assert stored(database) == {0}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("wanted", [3, pytest.param(50, marks=pytest.mark.full)])
def test_killed_during_commit_leaves_both_or_neither(driver, database, writers, wanted, record_property):
    outcomes: Counter[str] = Counter()
    expected: set[int] = set()
    longest, working = LONGEST_WAIT, False
    for transaction in range(wanted * 20):
        # given a writer that is about to call COMMIT
        if not working:
            writers.start(driver, database, rows=ROWS, first=transaction)
        writers.expect(b"w")
        writers.go()
        writers.expect(b"c")
        mine = set(range(transaction * ROWS, (transaction + 1) * ROWS))

        # when it is killed some moments later, and COMMIT has not returned by then
        working = writers.says_something(within=random.uniform(0, longest))
        if working or writers.kill():
            if working:
                writers.expect(b"d")
            expected |= mine
            longest = max(longest * 0.9, 0.0001)  # too late: sooner next time
            continue

        # then all of its orders are there with their events, or none of either, and what was committed before is untouched
        found = stored(database)
        if found == expected:
            outcomes["neither"] += 1
        else:
            assert found == expected | mine
            outcomes["both"] += 1
            expected = found
        if outcomes.total() == wanted:
            break
    print(f"\n{driver}: killed {wanted} times during COMMIT, {dict(outcomes)}, after {transaction + 1} transactions")
    record_property("outcomes", dict(outcomes))
    assert outcomes["both"] + outcomes["neither"] == wanted, "COMMIT was not met often enough"
