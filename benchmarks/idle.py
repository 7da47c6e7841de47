"""What a relay costs its database while there is nothing to do: statements a second, BEGIN and COMMIT not counted."""

import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
from sqlalchemy.engine import make_url

from benchmarks.backlog import Backlog
from benchmarks.harness import Sample, Table, publish
from benchmarks.relay import kafka_sender
from outbox_publisher.demo.relay_process import RelayProcess
from tests.services.client import BenchClient
from tests.services.databases import postgresql_database

SECONDS = 60.0
SETTINGS = """
outbox:
  database-url: {url}
  publisher:
    sender: {sender}
    events: {{order-created: {{topic: orders}}}}
"""
COUNTED = """
SELECT calls, query FROM pg_stat_statements JOIN pg_database d ON d.oid = dbid
WHERE d.datname = current_database() AND query !~* '^(BEGIN|COMMIT|ROLLBACK)' AND query NOT LIKE '%pg_stat_statements%'
ORDER BY calls DESC"""


def measure(bench: BenchClient) -> None:
    own = bench.own("postgresql")
    try:
        server = make_url(own.url).set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET shared_preload_libraries = 'pg_stat_statements'")
        own.stop()
        own.restart()
        with (
            postgresql_database(own.url) as url,
            Backlog.at(url, 1, "orders") as backlog,
            TemporaryDirectory() as folder,
        ):
            relay = RelayProcess(Path(folder), SETTINGS.format(url=url, sender=kafka_sender(bench.url("kafka"))))
            with psycopg.connect(backlog.dsn, autocommit=True) as connection:
                connection.execute("CREATE EXTENSION pg_stat_statements")
                connection.execute("DELETE FROM outbox_events")
                relay.start()
                time.sleep(10)
                connection.execute("SELECT pg_stat_statements_reset()")
                time.sleep(SECONDS)
                found = connection.execute(COUNTED.encode()).fetchall()
            assert relay.running()
            relay.stop()
    finally:
        own.release()
    for calls, query in found:
        print(f"    {calls:>5}  {' '.join(query.split())[:110]}")
    table = Table("An idle relay with one event type, at its defaults", "statements/s")
    table.add("all statements (≤ 4)", Sample((sum(calls for calls, _ in found) / SECONDS,)))
    publish("idle", table, notes={"statements": {" ".join(query.split()): calls for calls, query in found}})
