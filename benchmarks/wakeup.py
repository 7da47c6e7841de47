"""What wake-ups cost those who write: eight writers that commit as fast as they can, each time a business row and an event.

A LISTENing session hears the hints meanwhile. The turns are short and take their places in pairs, in the same processes, so that whatever
else the machine does meets all variants alike; every turn asserts its effects. NOTIFY inside of each transaction, as it is often written
by hand, is shown beside it.
"""

import multiprocessing
import threading
import time
from typing import Any

import psycopg
from sqlalchemy import Column, Integer, MetaData, Table, func, insert, select, text
from sqlalchemy.engine import make_url
from sqlalchemy.orm import Session

from benchmarks import harness
from outbox_publisher import Outbox, PublisherSettings
from outbox_publisher.schema import create_tables
from outbox_publisher.store import channel_for, store_for
from outbox_shared.database import make_engine
from outbox_shared.tables import TableNames
from tests.services.client import BenchClient
from tests.services.databases import postgresql_database

WRITERS, TURNS, SECONDS = 8, 25, 0.6
CHANNEL = channel_for("postgresql", TableNames())
ORDERS = Table("orders", MetaData(), Column("id", Integer, primary_key=True), Column("writer", Integer))
POLL, NOTIFY, INSIDE = "poll", "hints out of band", "NOTIFY in each transaction"


def write(url: str, number: int, threads: int, turn: Any, counts: Any) -> None:
    """One writing process: so many threads, which keep step with all others."""
    engine = make_engine(url, "outbox-publisher")
    outboxes = {
        variant: Outbox(PublisherSettings(defaults={"topic": "t"}, wakeup="notify" if variant == NOTIFY else "poll"))
        for variant in (POLL, NOTIFY, INSIDE)
    }

    def commit(variant: str) -> None:
        with Session(engine) as session, session.begin():
            session.execute(insert(ORDERS).values(writer=number))
            outboxes[variant].publish(session, "order-created", {"writer": number, "note": "x" * 420}, key=number)
            if variant == INSIDE:
                session.execute(text(f'NOTIFY "{CHANNEL}"'))

    def keep_writing() -> None:
        for round_number in range(TURNS + 1):
            for variant in order(round_number):
                turn.wait()
                done, until = 0, time.perf_counter() + SECONDS
                while time.perf_counter() < until:
                    commit(variant)
                    done += 1
                counts.put((round_number, variant, done))

    working = [threading.Thread(target=keep_writing) for _ in range(threads)]
    for thread in working:
        thread.start()
    for thread in working:
        thread.join()
    engine.dispose()


def order(round_number: int) -> tuple[str, ...]:
    """Nobody always comes second."""
    return (POLL, NOTIFY, INSIDE) if round_number % 2 else (INSIDE, NOTIFY, POLL)


def commits(server: str, processes: int) -> list[dict[str, int]]:
    """How many transactions each turn had, in writers that are spread over so many processes."""
    turns: list[dict[str, int]] = [dict.fromkeys((POLL, NOTIFY, INSIDE), 0) for _ in range(TURNS + 1)]
    with postgresql_database(server) as url:
        engine = make_engine(url, "outbox-publisher")
        create_tables(engine, TableNames())
        ORDERS.create(engine)
        context = multiprocessing.get_context("spawn")
        turn, counts, threads = context.Barrier(WRITERS), context.Queue(), WRITERS // processes
        started = [context.Process(target=write, args=(url, n, threads, turn, counts)) for n in range(processes)]
        heard: list[int] = []
        ending = threading.Event()
        ear = threading.Thread(target=listen, args=(url, heard, ending))
        ear.start()
        for process in started:
            process.start()
        for _ in range(WRITERS * (TURNS + 1) * 3):
            number, variant, done = counts.get()
            turns[number][variant] += done
        for process in started:
            process.join()
        ending.set()
        ear.join()
        events = store_for("postgresql", TableNames()).tables.events
        with engine.connect() as connection:
            stored = connection.execute(select(func.count()).select_from(events)).scalar_one()
        engine.dispose()
        assert stored == sum(sum(one.values()) for one in turns), f"{stored} events are not what the writers say"
        assert len(heard) > sum(one[INSIDE] for one in turns) + TURNS, "hints were missing"
    return turns[1:]  # the first is for warming up


def listen(url: str, heard: list[int], ending: threading.Event) -> None:
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f'LISTEN "{CHANNEL}"')
        while not ending.is_set():
            heard += [1 for _ in connection.notifies(timeout=0.2)]


def measure(bench: BenchClient) -> None:
    server, tables = bench.url("postgresql"), []
    for processes in (1, WRITERS):
        turns = commits(server, processes)
        where = "one process" if processes == 1 else f"{processes} processes"
        rates = harness.Table(f"{WRITERS} writers in {where}", "commits/s")
        kept = harness.Table(
            f"{WRITERS} writers in {where}: what each round has left of its commits without hints", "×"
        )
        for variant in (POLL, NOTIFY, INSIDE):
            rates.add(variant, harness.Sample(tuple(one[variant] / SECONDS for one in turns)))
        for variant, bar in ((NOTIFY, " (≥ 0.85)"), (INSIDE, "")):
            kept.add(f"{variant}{bar}", harness.Sample(tuple(one[variant] / one[POLL] for one in turns)))
        tables += [rates, kept]
    harness.publish("wakeup", *tables)
