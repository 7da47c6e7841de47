"""Cleanup of expired consumed rows beside many that live: against the usual loop of DELETEs, and what consumers feel of either.

First the cleaners alone, rows a second; then two consumers, whose handler writes one row for each message, messages a second without a
cleaner and while one is at work. `CLEANUP_SHARE=0.1` measures with a tenth of the rows.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import text
from sqlalchemy.engine import Engine

from benchmarks.harness import Sample, Table, publish, take_turns
from outbox_consumer import ConsumerSettings, IdempotentConsumer
from outbox_consumer.cleaning.duty import Cleaning
from outbox_consumer.schema import create_tables
from outbox_shared.clock import SystemClock
from outbox_shared.database import make_engine
from outbox_shared.ids import new_event_id
from outbox_shared.tables import TableNames
from tests.services.client import BenchClient
from tests.services.databases import postgresql_database

SHARE = float(os.environ.get("CLEANUP_SHARE", "1"))
LIVE, EXPIRED = int(10_000_000 * SHARE), int(1_000_000 * SHARE)
ROUNDS, ROUNDS_BESIDE, CONSUMERS, WARM_UP, ALONE = 3, 5, 2, 3.0, 5.0

_FILL = text("""
    INSERT INTO outbox_consumed_events (consumer, event_id, event_type, consumed_at)
    SELECT 'consumer-' || n % 4, CAST(lpad(to_hex(:first + n), 12, '0') || '7' || substr(md5(n::text || :first), 1, 3)
           || '8' || substr(md5(n::text || :first), 4, 15) AS uuid), 'order-created', :since + n * (:until - :since) / :count
    FROM generate_series(1, :count) AS n
""")
_REFERENCE = text("""
    DELETE FROM outbox_consumed_events WHERE (consumer, event_id) IN (
        SELECT consumer, event_id FROM outbox_consumed_events WHERE consumed_at < now() - interval '7 days'
        ORDER BY consumed_at LIMIT 10000)
""")


def fill(engine: Engine, first: int, count: int, oldest: int, newest: int) -> None:
    """`count` rows, consumed between so many days ago, in the order of their ids as uuid7 has it."""
    with engine.begin() as connection:
        since, until = (
            connection.execute(text("SELECT now() - make_interval(days => :days)"), {"days": days}).scalar_one()
            for days in (oldest, newest)
        )
        connection.execute(_FILL, {"first": first, "count": count, "since": since, "until": until})
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE outbox_consumed_events"))
        connection.execute(text("CHECKPOINT"))
    os.sync()  # or the disk would still be writing it down while somebody is measured


def by_hand(engine: Engine) -> int:
    gone = 0
    while True:
        with engine.begin() as connection:
            count = connection.execute(_REFERENCE).rowcount
        if count == 0:
            return gone
        gone += count


def ours(engine: Engine) -> int:
    settings = ConsumerSettings().clean_up
    cleaning = Cleaning(lambda: engine, TableNames(), lambda: settings, SystemClock(), lambda _count: None)
    return cleaning.run_to_the_end()[0]


CLEANERS: dict[str, Callable[[Engine], int]] = {"reference DELETE": by_hand, "outbox cleanup": ours}


def consume(url: str, done: Any, stop: Any) -> None:
    """Messages as fast as they go; `done` counts them."""
    engine = make_engine(url, "outbox-consumer")
    consumer = IdempotentConsumer(engine, name="measured", settings=ConsumerSettings(clean_up={"enabled": False}))
    effect = text("INSERT INTO effects (event_id) VALUES (:id)")
    while not stop.is_set():
        message = {"outbox_event_id": str(new_event_id()), "outbox_event_type": "order-created"}
        consumer.consume(message, lambda session: session.execute(effect, {"id": message["outbox_event_id"]}))  # noqa: B023
        done.value += 1
    engine.dispose()


class Database:
    def __init__(self, url: str) -> None:
        self.url, self.engine = url, make_engine(url, "outbox-consumer")
        create_tables(self.engine)
        with self.engine.begin() as connection:
            connection.execute(text("CREATE TABLE effects (event_id text)"))
        self._first = 1
        self._fill(LIVE, 6, 0)

    def _fill(self, count: int, oldest: int, newest: int) -> None:
        fill(self.engine, self._first, count, oldest, newest)
        self._first += count + 1

    def clean(self, cleaner: Callable[[Engine], int]) -> float:
        """Rows a second."""
        self._fill(EXPIRED, 9, 8)
        began = time.perf_counter()
        gone = cleaner(self.engine)
        took = time.perf_counter() - began
        self._check(gone)
        return gone / took

    def beside(self, cleaner: Callable[[Engine], int]) -> tuple[float, float, float]:
        """Messages a second without the cleaner and with it, and the cleaner's rows a second meanwhile."""
        self._fill(EXPIRED, 9, 8)
        context = multiprocessing.get_context("spawn")
        counts, stop = [context.Value("q", 0) for _ in range(CONSUMERS)], context.Event()
        consumers = [context.Process(target=consume, args=(self.url, count, stop)) for count in counts]
        for one in consumers:
            one.start()
        while not all(count.value > 100 for count in counts):
            time.sleep(0.05)
        time.sleep(WARM_UP)

        def rate(work: Callable[[], Any]) -> tuple[float, float]:
            before, began = sum(count.value for count in counts), time.perf_counter()
            work()
            took = time.perf_counter() - began
            return (sum(count.value for count in counts) - before) / took, took

        alone, _ = rate(lambda: time.sleep(ALONE))
        gone: list[int] = []
        busy, took = rate(lambda: gone.append(cleaner(self.engine)))
        after, _ = rate(lambda: time.sleep(ALONE))
        stop.set()
        for one in consumers:
            one.join()
        self._check(gone[0])
        return (alone + after) / 2, busy, gone[0] / took

    def _check(self, gone: int) -> None:
        """Every expired row went, and no other."""
        assert gone == EXPIRED, f"{gone} rows went"
        with self.engine.connect() as connection:
            sql = "SELECT count(*), count(*) FILTER (WHERE consumer = 'measured') FROM outbox_consumed_events"
            found, measured = connection.execute(text(sql)).one()
            effects = connection.execute(text("SELECT count(*) FROM effects")).scalar_one()
        assert found - measured == LIVE, f"{found - measured} rows are left"
        assert measured == effects, f"{measured} marks and {effects} effects"


def measure(bench: BenchClient) -> None:
    with postgresql_database(bench.url("postgresql")) as url:
        database = Database(url)
        alone = take_turns({name: lambda it=it: database.clean(it) for name, it in CLEANERS.items()}, ROUNDS)  # type: ignore[misc]
        seen: dict[str, list[tuple[float, float, float]]] = {name: [] for name in CLEANERS}
        for number in range(ROUNDS_BESIDE):
            for name, it in CLEANERS.items():
                seen[name].append(database.beside(it))
                print(
                    f"    {number + 1}/{ROUNDS_BESIDE}  beside {name}: "
                    + ", ".join(f"{value:,.0f}" for value in seen[name][-1]),
                    flush=True,
                )
        database.engine.dispose()

    cleaning = Table(f"{EXPIRED:,} expired consumed rows beside {LIVE:,} that live, PostgreSQL", "rows/s")
    base, mine = CLEANERS
    cleaning.add(base, alone[base])
    cleaning.add(mine, alone[mine], base=base, bar="≥ 0.5")
    consuming = Table(f"{CONSUMERS} consumers, one message a transaction, handler writes one row", "messages/s")
    keeping = Table("the share of their rate that they keep, in each run", "of it")
    for name in CLEANERS:
        without, beside = (Sample(tuple(run[which] for run in seen[name])) for which in (0, 1))
        consuming.add(f"without {name}", without)
        consuming.add(f"beside {name}", beside)
        keeping.add(f"beside {name}", Sample(tuple(run[1] / run[0] for run in seen[name])))
    keeping.rows[-1].bar = "≥ 0.8"
    meanwhile = {name: [round(run[2]) for run in runs] for name, runs in seen.items()}
    print("\nrows a second that went meanwhile:", meanwhile)
    publish(
        "consumed-cleanup",
        cleaning,
        consuming,
        keeping,
        notes={"live": LIVE, "expired": EXPIRED, "cleaned_meanwhile": meanwhile},
    )
