"""Tables with many rows, and what the servers tell about the statements that meet them: how many, by which plan, reading how much."""

import json
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg
from sqlalchemy import event, text
from sqlalchemy.engine import Connection, Engine

from tests.fixtures import OutboxDatabase

# Rows.

_DONE = {True: "PROCESSED", False: "PENDING"}

_FILL = {
    "postgresql": """
        INSERT INTO outbox_events
            (id, lane, event_type, topic, content_type, payload, status, failed, next_retry_at, processed_at)
        SELECT (:prefix || lpad(to_hex(n), 24, '0'))::uuid, 0, :event_type, :topic, 'x', convert_to(repeat('x', 100), 'UTF8'),
            :status, false, now() + make_interval(secs => :due_in + n * 0.000001),
            CASE WHEN :done THEN now() - make_interval(secs => 3600 - n * 0.000001) END
        FROM generate_series(1, :count) AS n""",
    "mysql": """
        INSERT INTO outbox_events
            (id, lane, event_type, topic, content_type, payload, status, failed, next_retry_at, processed_at)
        SELECT UNHEX(CONCAT(:prefix, LPAD(HEX(seq), 24, '0'))), 0, :event_type, :topic, 'x', REPEAT('x', 100),
            :status, false, UTC_TIMESTAMP(6) + INTERVAL (:due_in * 1000000 + CAST(seq AS SIGNED)) MICROSECOND,
            IF(:done, UTC_TIMESTAMP(6) - INTERVAL (3600000000 - seq) MICROSECOND, '9999-12-31')
        FROM seq_1_to_{count}""",
}


def fill(
    database: OutboxDatabase,
    count: int,
    event_type: str,
    *,
    topic: str = "orders",
    due_in: int = -3600,
    done: bool = False,
) -> None:
    """Rows made by the server, due (or, if `done`, processed an hour ago) one microsecond after the other; ids rise with them."""
    prefix = f"{zlib.crc32(f'{event_type} {topic} {due_in} {done}'.encode()):08x}"
    given = {"event_type": event_type, "topic": topic, "due_in": due_in, "done": done, "status": _DONE[done]}
    sql = _FILL[database.engine.dialect.name].replace("{count}", str(count))
    with database.engine.begin() as connection:
        connection.execute(text(sql), {"prefix": prefix, "count": count, **given})


def vacuum(database: OutboxDatabase, *what: str) -> None:
    """PostgreSQL: as autovacuum would leave the table; without "ANALYZE" the planner knows nothing of its columns."""
    with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql(f"VACUUM {' '.join(what)} outbox_events")


# Statements.


@dataclass
class Transaction:
    statements: list[str] = field(default_factory=list)
    committed: bool = False

    @property
    def writes(self) -> bool:
        return any(is_write(statement) for statement in self.statements)


def is_write(statement: str) -> bool:
    return re.search(r"\b(INSERT|UPDATE|DELETE)\b", statement.replace("FOR UPDATE", "")) is not None


@dataclass
class Recorded:
    """What an engine was asked for, in transactions as they were begun."""

    transactions: list[Transaction] = field(default_factory=list)
    driver: list[str] = field(default_factory=list)
    """What the driver was given, by whichever way; without pings and transaction control."""

    @property
    def reads(self) -> list[Transaction]:
        return [one for one in self.transactions if not one.writes]

    @property
    def writes(self) -> list[Transaction]:
        return [one for one in self.transactions if one.writes]

    @property
    def statements(self) -> list[str]:
        return [statement for one in self.transactions for statement in one.statements]

    @property
    def shape(self) -> list[tuple[str, int]]:
        """How many statements each transaction had."""
        return [("write" if one.writes else "read", len(one.statements)) for one in self.transactions]


_CONTROL = re.compile(r"\s*(BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|PRAGMA|SET|SHOW|;|$|select 1$)", re.IGNORECASE)


@contextmanager
def recording(engine: Engine) -> Iterator[Recorded]:
    """Count what goes through the engine's events and, beside them, what reaches the driver."""
    seen, current = Recorded(), dict[int, Transaction]()

    def begin(connection: Connection) -> None:
        current[id(connection)] = Transaction()
        seen.transactions.append(current[id(connection)])

    def commit(connection: Connection) -> None:
        current.pop(id(connection)).committed = True

    def rollback(connection: Connection) -> None:
        current.pop(id(connection), None)

    def execute(connection: Connection, _cursor: Any, statement: str, *_: Any) -> None:
        if not _CONTROL.match(statement):
            current[id(connection)].statements.append(statement)

    listeners = {"begin": begin, "commit": commit, "rollback": rollback, "before_cursor_execute": execute}
    for name, listener in listeners.items():
        event.listen(engine, name, listener)
    try:
        with _driver_of(engine, seen.driver):
            yield seen
    finally:
        for name, listener in listeners.items():
            event.remove(engine, name, listener)


@contextmanager
def _driver_of(engine: Engine, heard: list[str]) -> Iterator[None]:
    """Each driver's own way to hear everything: new connections are made with it."""

    def note(statement: Any) -> None:
        said = statement.decode() if isinstance(statement, bytes) else str(statement)
        if not _CONTROL.match(said):
            heard.append(said)

    def connected(connection: Any, _record: Any) -> None:
        match engine.dialect.name:
            case "postgresql":
                connection.cursor_factory = _listening_cursor(note)
            case "mysql":
                connection.query = _listening(connection.query, note)
            case "sqlite":
                connection.set_trace_callback(note)

    engine.dispose()
    event.listen(engine, "connect", connected)
    try:
        yield
    finally:
        event.remove(engine, "connect", connected)
        engine.dispose()


def _listening(query: Any, note: Any) -> Any:
    def listened(sql: Any, *rest: Any, **options: Any) -> Any:
        note(sql)
        return query(sql, *rest, **options)

    return listened


def _listening_cursor(note: Any) -> type:
    class Listening(psycopg.Cursor[Any]):
        def execute(self, query: Any, *rest: Any, **options: Any) -> Any:
            note(query)
            return super().execute(query, *rest, **options)

        def executemany(self, query: Any, params: Iterable[Any], **options: Any) -> Any:
            given = list(params)
            for _ in given:
                note(query)
            return super().executemany(query, given, **options)

        def copy(self, statement: Any, *rest: Any, **options: Any) -> Any:
            note(statement)
            return super().copy(statement, *rest, **options)

    return Listening


# What reading costs.


@contextmanager
def rows_read(connection: Connection) -> Iterator[list[int]]:
    """MariaDB: how many rows its storage engine was asked for."""
    counted: list[int] = []
    connection.exec_driver_sql("FLUSH STATUS")
    yield counted
    counters = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Handler_read%%'").all()
    counted.append(sum(int(value) for _, value in counters))


@dataclass(frozen=True)
class Plan:
    """How PostgreSQL has just executed a statement."""

    sql: str
    root: dict[str, Any]

    @property
    def nodes(self) -> list[dict[str, Any]]:
        return list(_below(self.root))

    @property
    def indexes(self) -> set[str]:
        return {node["Index Name"] for node in self.nodes if "Index Name" in node}

    @property
    def whole_tables(self) -> set[str]:
        """What was read from its first page to its last."""
        return {node["Relation Name"] for node in self.nodes if node["Node Type"] == "Seq Scan"}

    @property
    def buffers(self) -> int:
        """Pages that were looked at, in memory or not."""
        return int(self.root["Shared Hit Blocks"] + self.root["Shared Read Blocks"])

    def conditions(self, index: str) -> str:
        return " ".join(node.get("Index Cond", "") for node in self.nodes if node.get("Index Name") == index)

    def filters(self) -> str:
        return " ".join(node[name] for node in self.nodes for name in ("Filter", "Join Filter") if name in node)


def _below(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for child in node.get("Plans", ()):
        yield from _below(child)


_EXPLAIN = """
    LOAD 'auto_explain';
    SET auto_explain.log_min_duration = 0; SET auto_explain.log_analyze = on; SET auto_explain.log_buffers = on;
    SET auto_explain.log_timing = off; SET auto_explain.log_format = json; SET auto_explain.log_level = notice"""


@contextmanager
def plans(engine: Engine, *, plan_cache_mode: str = "auto") -> Iterator[list[Plan]]:
    """PostgreSQL: the plans of all that this engine executes, as they were executed, told by the server itself.

    psycopg prepares what it has executed five times, and the server may then plan without knowing the values: "force_generic_plan" is
    that plan from the first execution on.
    """
    heard: list[Plan] = []

    def note(diagnostic: psycopg.errors.Diagnostic) -> None:
        said = diagnostic.message_primary or ""
        if "plan:" in said:
            told = json.loads(said.partition("plan:")[2])
            heard.append(Plan(told["Query Text"], told["Plan"]))

    def connected(connection: psycopg.Connection[Any], _record: Any) -> None:
        connection.add_notice_handler(note)
        connection.execute(f"{_EXPLAIN}; SET plan_cache_mode = {plan_cache_mode}".encode())
        connection.commit()

    engine.dispose()
    event.listen(engine, "connect", connected)
    try:
        yield heard
    finally:
        event.remove(engine, "connect", connected)
        engine.dispose()
