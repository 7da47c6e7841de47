"""`outbox-consumer doctor` finds what keeps a consumer from working, says what to do, and leaves nothing behind."""

import json
import re
import sys

import pytest
from sqlalchemy import create_engine, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool


@pytest.fixture
def findings(command):
    """findings(url, OUTBOX_…="…") -> exit code, and {(level, subject): [what …]}"""

    def run(url, **environment):
        given = {"OUTBOX_DATABASE_URL": url} if url else {}
        code, output, errors = command("outbox-consumer", "doctor", "--json", **given, **environment)
        assert errors == ""
        found: dict[tuple[str, str], list[str]] = {}
        for one in json.loads(output):
            found.setdefault((one["level"], one["subject"]), []).append(f"{one['what']} | {one['remedy']}")
        return code, found

    return run


def levels(found):
    return {level for level, _ in found}


def test_a_consumer_that_can_work(findings, consumed_database):
    consumed_database.consumed(2, days=1)

    code, found = findings(consumed_database.url)

    assert (code, levels(found)) == (0, {"ok"})
    assert {subject for _, subject in found} >= {
        "settings",
        "database",
        "tables",
        "rights",
        "clock",
        "retention",
        "clients",
    }
    assert (consumed_database.rows(), consumed_database.rows("attempts"), consumed_database.leases()) == (2, 0, [])


def test_people_get_a_line_for_each_thing(command, consumed_database):
    code, output, _ = command("outbox-consumer", "doctor", OUTBOX_DATABASE_URL=consumed_database.url)

    assert code == 0
    assert re.search(r"^ok +tables +are as this release expects them$", output, re.MULTILINE)
    assert re.search(r"^ok +retention +a message that comes again within 7d is recognised", output, re.MULTILINE)


def test_settings_that_cannot_be_read(findings):
    code, found = findings(None, OUTBOX_CONSUMER__CLEAN_UP__TTL="7")

    assert code == 1
    assert list(found) == [("problem", "settings")]
    assert "write a duration with its unit" in found["problem", "settings"][0]


def test_no_database(findings):
    code, found = findings(None)

    assert code == 1
    assert found["problem", "database"] == [
        "no database is configured | set outbox.database-url (OUTBOX_DATABASE_URL), such as postgresql://user@host/database"
    ]
    assert ("ok", "clients") in found  # the rest is looked at


def test_a_database_that_does_not_answer_and_a_password_that_is_not_shown(findings):
    code, found = findings("postgresql://user:secret@127.0.0.1:1/shop")

    assert code == 1
    assert "look at outbox.database-url" in found["problem", "database"][0]
    assert "secret" not in str(found)


def test_a_missing_driver(findings, monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)

    code, found = findings("postgresql://db/shop")

    assert (code, "pip install 'outbox-consumer[postgresql]'" in str(found)) == (1, True)


def test_missing_tables(findings, consumed_database):
    code, found = findings(consumed_database.url, OUTBOX_TABLES__PREFIX="absent_")

    assert code == 1
    assert "absent_consumed_events is missing | run: outbox-consumer init-db" in found["problem", "tables"]
    assert ("ok", "rights") not in found


def test_a_table_that_differs_and_another_version(findings, consumed_database):
    state = consumed_database.upkeep.state_table
    with consumed_database.engine.begin() as connection:
        connection.execute(update(state).where(state.c.kind == "schema").values(value="99"))
        on = " ON outbox_consumed_events" if consumed_database.engine.dialect.name == "mysql" else ""
        connection.execute(text(f"DROP INDEX outbox_consumed_events_consumed_at{on}"))

    code, found = findings(consumed_database.url)

    assert code == 1
    assert any("consumed_at is missing" in line for line in found["problem", "tables"])
    assert any("schema version 99" in line for line in found["problem", "tables"])


def test_a_role_with_too_few_rights(findings, consumed_on_postgresql):
    # given a role that may insert marks and nothing else
    database, role = consumed_on_postgresql, "doctor_" + make_url(consumed_on_postgresql.url).database[-8:]
    with database.engine.begin() as connection:
        connection.execute(text(f"CREATE ROLE {role} LOGIN PASSWORD 'secret'"))
        connection.execute(text(f"GRANT INSERT ON outbox_consumed_events TO {role}"))
    url = make_url(database.url).set(username=role, password="secret").render_as_string(hide_password=False)
    try:
        code, found = findings(url)
        few = str(found["warning", "rights"])
        with database.engine.begin() as connection:
            connection.execute(text(f"REVOKE INSERT ON outbox_consumed_events FROM {role}"))
        worse, then = findings(url)
    finally:
        with database.engine.begin() as connection:
            connection.execute(text(f"DROP OWNED BY {role}"))
            connection.execute(text(f"DROP ROLE {role}"))

    # then it can consume, and the rest is another's
    assert code == 0
    assert all(what in few for what in ("clean up consumed rows", "hold the lease", "count a message's failures"))
    assert "secret" not in str(found)
    assert worse == 1
    assert "cannot mark events as consumed" in str(then["problem", "rights"])


def test_sessions_that_begin_in_a_strict_isolation(findings, consumed_on_postgresql):
    name = make_url(consumed_on_postgresql.url).database
    with create_engine(consumed_on_postgresql.url, poolclass=NullPool).connect() as connection:
        connection.execute(text(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = 'serializable'"))
        connection.commit()

    code, found = findings(consumed_on_postgresql.url)

    assert code == 0
    assert "sessions begin in SERIALIZABLE" in found["warning", "isolation"][0]
    assert 'isolation_level="READ COMMITTED"' in found["warning", "isolation"][0]


def test_rows_that_nobody_cleans(findings, consumed_database):
    consumed_database.consumed(1, days=10)

    code, found = findings(consumed_database.url)

    assert code == 0
    assert "past its ttl of 7d: no consumer runs that cleans up" in found["warning", "retention"][0]
    assert "run outbox-consumer cleanup" in found["warning", "retention"][0]


def test_a_consumer_that_forgets_before_the_last_replay(findings, consumed_database, tmp_path):
    (tmp_path / "outbox.yml").write_text("outbox: {publisher: {}, consumer: {clean-up: {ttl: 1d}}}")

    code, found = findings(consumed_database.url)

    assert code == 0
    assert "is shorter than publisher.dlq.replay-window 7d" in found["warning", "settings"][0]


def test_clocks_that_disagree(findings, consumed_database, monkeypatch):
    state = type(consumed_database.upkeep.state)
    now = state.now
    monkeypatch.setattr(state, "now", lambda self, connection: now(self, connection).replace(year=2001))

    code, found = findings(consumed_database.url)

    assert code == 0
    assert "apart" in found["warning", "clock"][0]


def test_a_consumer_that_is_turned_off(findings, consumed_database):
    assert findings(consumed_database.url, OUTBOX_CONSUMER__ENABLED="false")[0] == 1


def with_cache(url):
    return {"OUTBOX_CONSUMER__CACHE__ENABLED": "true", "OUTBOX_CONSUMER__CACHE__REDIS_URL": url}


def test_a_redis_that_answers(findings, consumed_on_sqlite, redis_url):
    code, found = findings(consumed_on_sqlite.url, **with_cache(redis_url))

    assert code == 0
    assert "answers; maxmemory-policy" in found["ok", "redis"][0]


def test_a_redis_that_is_away_is_a_problem_and_does_not_take_long(findings, consumed_on_sqlite):
    code, found = findings(consumed_on_sqlite.url, **with_cache("redis://:secret@127.0.0.1:1/0"))

    assert code == 1
    assert "does not answer" in found["problem", "redis"][0]
    assert "secret" not in str(found)


def test_a_redis_that_drops_nothing_when_it_is_full(findings, consumed_on_sqlite, own_server):
    import redis  # noqa: PLC0415

    url = own_server("redis").url
    client = redis.Redis.from_url(url)
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", "50mb")
    client.close()

    code, found = findings(consumed_on_sqlite.url, **with_cache(url))

    assert code == 0
    assert "maxmemory-policy allkeys-lru" in found["warning", "redis"][0]


def test_without_its_client_a_redis_is_a_problem(findings, consumed_on_sqlite, monkeypatch):
    monkeypatch.setitem(sys.modules, "redis", None)

    code, found = findings(consumed_on_sqlite.url, **with_cache("redis://localhost/0"))

    assert (code, "pip install 'outbox-consumer[redis]'" in found["problem", "redis"][0]) == (1, True)


def test_an_old_server(findings, consumed_database, monkeypatch):
    upkeep = type(consumed_database.upkeep)
    monkeypatch.setattr(upkeep, "server", lambda self, connection: ("Server", (9, 6), (13,)))

    code, found = findings(consumed_database.url)

    assert (code, found["problem", "database"]) == (1, ["Server 9.6 answers | the consumer needs Server 13 or newer"])
