"""Fresh databases are each test's own, and a template is made once for all."""

from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from tests.services.databases import administration, mariadb_database, postgresql_database, template_database


def execute(url, *statements):
    engine = create_engine(url, poolclass=NullPool)
    with engine.begin() as connection:
        results = [connection.execute(text(statement)) for statement in statements]
        return results[-1].scalar() if results[-1].returns_rows else None


@pytest.mark.parametrize("factory", ["fresh_postgresql", "fresh_mariadb", "fresh_sqlite"])
def test_fresh_databases_are_isolated(request, factory):
    fresh = request.getfixturevalue(factory)
    one, two = fresh(), fresh()

    execute(one, "CREATE TABLE t (id int)", "INSERT INTO t VALUES (1)")
    execute(two, "CREATE TABLE t (id int)")

    assert execute(one, "SELECT count(*) FROM t") == 1
    assert execute(two, "SELECT count(*) FROM t") == 0


def test_the_urls_name_the_drivers_of_the_suite(fresh_postgresql, fresh_mariadb, fresh_sqlite):
    assert make_url(fresh_postgresql()).drivername == "postgresql+psycopg"
    assert make_url(fresh_mariadb()).drivername == "mysql+pymysql"
    assert make_url(fresh_sqlite()).drivername == "sqlite"


@pytest.mark.parametrize(
    ("server", "database"), [("postgresql_server", postgresql_database), ("mariadb_server", mariadb_database)]
)
def test_a_database_goes_even_with_a_transaction_open_in_it(request, server, database):
    server_url = request.getfixturevalue(server)
    with database(server_url) as url:
        engine = create_engine(url)
        forgotten = engine.connect()
        forgotten.execute(text("CREATE TABLE t (id int)"))
        forgotten.execute(text("INSERT INTO t VALUES (1)"))

    with pytest.raises(OperationalError):
        execute(url, "SELECT 1")
    forgotten.invalidate()
    engine.dispose()


def test_a_template_is_filled_once_however_many_ask(postgresql_server, fresh_postgresql):
    name = f"template_{uuid4().hex}"
    filled = []

    def fill(url):
        filled.append(url)
        execute(url, "CREATE TABLE t (id int)", "INSERT INTO t VALUES (7)")

    with ThreadPoolExecutor(4) as askers:
        names = list(askers.map(lambda _: template_database(postgresql_server, name, fill), range(4)))

    assert names == [name] * 4
    assert len(filled) == 1
    assert execute(fresh_postgresql(template=name), "SELECT id FROM t") == 7
    drop_template(postgresql_server, name)


def test_a_half_filled_template_is_made_anew(postgresql_server, fresh_postgresql):
    name = f"template_{uuid4().hex}"

    def fail(url):
        execute(url, "CREATE TABLE t (id int)")
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        template_database(postgresql_server, name, fail)
    template_database(postgresql_server, name, lambda url: execute(url, "CREATE TABLE t (id int)"))

    assert execute(fresh_postgresql(template=name), "SELECT count(*) FROM t") == 0
    drop_template(postgresql_server, name)


def drop_template(server_url, name):
    with administration(server_url) as connection:
        connection.exec_driver_sql(f'ALTER DATABASE "{name}" IS_TEMPLATE false')
        connection.exec_driver_sql(f'DROP DATABASE "{name}"')
