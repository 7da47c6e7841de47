"""docs/how-to/roles.md, run as it stands: each role connects to a real server, can do its work and nothing else."""

import re
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine, make_url
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

from outbox_consumer import IdempotentConsumer
from outbox_consumer.schema import CONSUMER
from outbox_publisher import Outbox, PublisherSettings, Relay
from outbox_publisher.schema import PUBLISHER
from outbox_publisher.senders import MemorySender
from outbox_shared.database import make_engine
from outbox_shared.tables import TableNames
from tests.consuming import a_message

DOC = (Path(__file__).parents[2] / "docs" / "how-to" / "roles.md").read_text()
SECTIONS = {"postgresql": "PostgreSQL", "mariadb": "MariaDB and MySQL"}
KINDS = pytest.mark.parametrize("database", SECTIONS, indirect=True)
PASSWORD = "change me"


def statements(kind: str, heading: str) -> list[str]:
    """The SQL under a heading of the document; "" is what stands before the first."""
    section = re.split(r"^## ", DOC, flags=re.MULTILINE)
    (chapter,) = (part for part in section if part.startswith(f"{SECTIONS[kind]}\n"))
    parts = re.split(r"^### ", chapter, flags=re.MULTILINE)
    (part,) = (part for part in parts if part.startswith(f"{heading or SECTIONS[kind]}\n"))
    blocks = re.findall(r"```sql\n(.*?)```", part, flags=re.DOTALL)
    return [statement.strip() for block in blocks for statement in block.split(";\n") if statement.strip()]


class Server:
    """A fresh database with all tables, and the roles of one test in it."""

    def __init__(self, kind: str, url: str) -> None:
        self.kind, self.url = kind, url
        self._owner = make_engine(url, "outbox-publisher")
        self._suffix = uuid4().hex[:8]  # roles are the whole server's
        self._roles: list[str] = []
        for side in (PUBLISHER, CONSUMER):
            side.create(self._owner, TableNames())
        self._run(statements(kind, "") if kind == "postgresql" else [])

    def role(self, name: str, *headings: str) -> str:
        """Create the role as documented, with the rights of further headings; returns the URL to connect as it."""
        own = f"shop_{name}_{self._suffix}"
        self._roles.append(own)
        documented = [line for heading in (name, *headings) for line in statements(self.kind, heading)]
        self._run([line.replace(f"shop_{name}", own) for line in documented])
        return make_url(self.url).set(username=own, password=PASSWORD).render_as_string(hide_password=False)

    def rows(self, table: str) -> int:
        with self._owner.connect() as connection:
            return int(connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one())

    def close(self) -> None:
        for role in self._roles:
            postgresql = [f"DROP OWNED BY {role}", f"DROP ROLE {role}"]
            self._run(postgresql if self.kind == "postgresql" else [f"DROP USER '{role}'@'%'"])
        self._owner.dispose()

    def _run(self, lines: list[str]) -> None:
        with self._owner.begin() as connection:
            for line in lines:
                connection.exec_driver_sql(line.replace("%", "%%") if self.kind == "mariadb" else line)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param, request.getfixturevalue(f"fresh_{request.param}")())
    yield server
    server.close()


def publish(url: str, **options: object) -> bool:
    engine = create_engine(url, poolclass=NullPool)
    outbox = Outbox(PublisherSettings(database_url=url, name="shop", defaults={"topic": "orders"}))
    with Session(engine) as session, session.begin():
        return outbox.publish(session, "order-created", {"id": 1}, key=1, **options).stored


def refused(url: str, *lines: str) -> list[str]:
    """Those of the statements that the server refuses to this role for want of a right."""
    engine: Engine = create_engine(url, poolclass=NullPool)
    found = []
    for line in lines:
        try:
            with engine.begin() as connection:
                connection.execute(text(line))
        except DBAPIError as error:
            if not re.search("denied|permission|must be owner", str(error.orig)):
                raise
            found.append(line)
    return found


@KINDS
def test_a_producer_can_publish_and_do_nothing_else(database: Server):
    url = database.role("producer")

    assert publish(url)

    assert database.rows("outbox_events") == 1
    forbidden = (
        "SELECT * FROM outbox_events",
        "SELECT count(*) FROM outbox_events",
        "UPDATE outbox_events SET topic = 'x'",
        "DELETE FROM outbox_events",
        "DROP TABLE outbox_events",
        "CREATE TABLE theirs (id integer)",
        *(
            f"{verb} outbox_{table}"
            for table in ("claims", "dlq_events", "state", "audit", "consumed_events", "consumer_attempts")
            for verb in ("SELECT * FROM", "DELETE FROM")
        ),
    )
    assert refused(url, *forbidden) == list(forbidden)


@KINDS
def test_a_producer_with_ids_of_its_own(database: Server):
    url = database.role("producer", *(["producer with ids of its own"] if database.kind == "mariadb" else []))

    assert publish(url, event_id="order-1")
    assert not publish(url, event_id="order-1")

    assert database.rows("outbox_events") == 1
    forbidden = (
        "SELECT payload FROM outbox_events",
        "UPDATE outbox_events SET topic = 'x'",
        "DELETE FROM outbox_events",
    )
    assert refused(url, *forbidden) == list(forbidden)


@KINDS
def test_a_producer_that_cancels(database: Server):
    url = database.role("producer", "producer that cancels")
    outbox = Outbox(PublisherSettings(database_url=url, defaults={"topic": "orders"}))

    with Session(create_engine(url, poolclass=NullPool)) as session, session.begin():
        event = outbox.publish(session, "order-created", {"id": 1}, key=1, delay="1h")
        assert outbox.cancel(session, event.id)

    assert database.rows("outbox_events") == 0
    assert refused(url, "SELECT payload FROM outbox_events") == ["SELECT payload FROM outbox_events"]


@KINDS
def test_a_relay_starts_and_works_without_the_right_to_create(database: Server):
    publish(database.url)
    url = database.role("relay")
    settings = PublisherSettings(database_url=url, defaults={"topic": "orders"})
    assert settings.tables.auto_create
    sender = MemorySender()

    relay = Relay(settings, sender=sender)
    relay.run_once()
    relay.close()

    assert len(sender.sent) == 1
    forbidden = ("CREATE TABLE theirs (id integer)", "DROP TABLE outbox_events", "DELETE FROM outbox_consumed_events")
    assert refused(url, *forbidden) == list(forbidden)


@KINDS
def test_a_relay_starts_where_it_may_not_write_the_version(database: Server):
    url = database.role("relay")
    database._run(["DELETE FROM outbox_state"])
    account = make_url(url).username
    database._run(
        [f"REVOKE INSERT ON outbox_state FROM {account}"]
        if database.kind == "postgresql"
        else [f"REVOKE INSERT ON outbox_state FROM '{account}'@'%'"]
    )

    Relay(PublisherSettings(database_url=url), sender=MemorySender()).close()

    assert database.rows("outbox_state") == 0


@KINDS
def test_an_operator_sees_everything_and_sends_nothing(database: Server, command):
    url = database.role("operator")

    assert command("outbox-publisher", "schema", "check", OUTBOX_DATABASE_URL=url)[0] == 0
    forbidden = (
        "INSERT INTO outbox_events (id) VALUES (NULL)",
        "DELETE FROM outbox_events",
        "DELETE FROM outbox_audit",
        "CREATE TABLE theirs (id integer)",
    )
    assert refused(url, *forbidden) == list(forbidden)


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_a_consumer_can_consume(database: Server):
    url = database.role("consumer")
    consumer, message = IdempotentConsumer(create_engine(url, poolclass=NullPool), name="billing"), a_message()

    assert consumer.consume(message, lambda session: None)
    assert not consumer.consume(message, lambda session: None)

    assert database.rows("outbox_consumed_events") == 1
    forbidden = ("SELECT * FROM outbox_events", "CREATE TABLE theirs (id integer)")
    assert refused(url, *forbidden) == list(forbidden)
