"""What a database-url means to a relay and to the commands, and that no error ever shows it."""

import sys

import pytest
from sqlalchemy.engine import make_url

from outbox_publisher import PublisherSettings
from outbox_shared.database import make_engine
from outbox_shared.database_urls import name_the_driver, sync_url
from outbox_shared.errors import ConfigurationError, MissingDependency


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("postgres://shop@db/shop", "postgresql+psycopg://shop@db/shop"),
        ("postgresql://shop@db/shop?sslmode=require", "postgresql+psycopg://shop@db/shop?sslmode=require"),
        ("mysql://shop@db/shop", "mysql+pymysql://shop@db/shop"),
        ("mariadb://shop@db/shop", "mariadb+pymysql://shop@db/shop"),
        ("postgresql+psycopg2://db/shop", "postgresql+psycopg2://db/shop"),
        ("postgresql+asyncpg://db/shop", "postgresql+asyncpg://db/shop"),
        ("sqlite:///shop.db", "sqlite:///shop.db"),
    ],
)
def test_a_database_without_a_driver_means_ours(written, meant):
    assert name_the_driver(written) == meant
    assert PublisherSettings(database_url=written).database_url == meant


@pytest.mark.parametrize(
    ("asynchronous", "sync"),
    [
        ("postgresql+asyncpg://u:p%40ss@db:5/x", "postgresql+psycopg://u:p%40ss@db:5/x"),
        ("postgresql+asyncpg://db/x?ssl=verify-full", "postgresql+psycopg://db/x?sslmode=verify-full"),
        ("postgresql+asyncpg://db/x?timeout=2.5", "postgresql+psycopg://db/x?connect_timeout=3"),
        ("postgresql+asyncpg://u@/x?host=a:1&host=b:2&target_session_attrs=any", "postgresql+psycopg://u@/x?host=a%3A1&host=b%3A2&target_session_attrs=any"),
        ("postgresql+psycopg_async://db/x?options=-csearch_path%3Da", "postgresql+psycopg://db/x?options=-csearch_path%3Da"),
        ("mysql+aiomysql://db/x?charset=utf8mb4&ssl_ca=ca.pem", "mysql+pymysql://db/x?charset=utf8mb4&ssl_ca=ca.pem"),
        ("mysql+asyncmy://db/x?connect_timeout=3", "mysql+pymysql://db/x?connect_timeout=3"),
        ("mariadb+aiomysql://db/x", "mariadb+pymysql://db/x"),
        ("mariadb+asyncmy://db/x", "mariadb+pymysql://db/x"),
        ("sqlite+aiosqlite:///shop.db?timeout=5", "sqlite:///shop.db?timeout=5"),
        ("postgresql+psycopg://db/x?anything=1", "postgresql+psycopg://db/x?anything=1"),
    ],
)  # fmt: skip
def test_an_async_url_is_used_through_its_sync_driver(asynchronous, sync):
    twin = sync_url(make_url(asynchronous))

    assert twin.render_as_string(hide_password=False) == sync
    make_engine(asynchronous, "outbox-publisher").dispose()


@pytest.mark.parametrize(
    ("url", "key", "driver"),
    [
        ("postgresql+asyncpg://u:secret@db/x?statement_cache_size=0", "statement_cache_size", "postgresql+psycopg"),
        ("postgresql+asyncpg://u:secret@db/x?prepared_statement_cache_size=0", "prepared_statement_cache_size", "postgresql+psycopg"),
        ("postgresql+asyncpg://u:secret@db/x?ssl=perhaps", "ssl", "postgresql+psycopg"),
        ("postgresql+asyncpg://u:secret@db/x?timeout=soon", "timeout", "postgresql+psycopg"),
        ("mysql+aiomysql://u:secret@db/x?echo=true", "echo", "mysql+pymysql"),
        ("sqlite+aiosqlite:///secret.db?iter_chunk_size=5", "iter_chunk_size", "sqlite"),
    ],
)  # fmt: skip
def test_what_only_the_async_driver_knows_is_refused(url, key, driver):
    with pytest.raises(ConfigurationError) as caught:
        make_engine(url, "outbox-publisher")

    assert str(caught.value) == (
        f"database-url is for {make_url(url).drivername}, and its {key!r} has no equal for {driver}, which works here: "
        f"pass engine=…, or write a URL for {driver}"
    )


@pytest.mark.parametrize(
    "url",
    ["sqlite://", "sqlite:///:memory:", "sqlite+aiosqlite://", "sqlite:///file::memory:?uri=true", "sqlite:///file:x?mode=memory&uri=true"],
)  # fmt: skip
def test_a_database_in_memory_is_refused(url):
    with pytest.raises(ConfigurationError) as caught:
        make_engine(url, "outbox-publisher")

    assert str(caught.value) == (
        "an SQLite database in memory is another one for each connection: pass engine=…, or write sqlite:///shop.db"
    )


@pytest.mark.parametrize(
    "url", ["secret", "x y://secret", "postgresql://u:secret@db:port/x", "cassandra://u:secret@db/x"]
)
def test_no_error_shows_the_url(url):
    with pytest.raises(ConfigurationError) as caught:
        make_engine(url, "outbox-publisher")

    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("url", "module", "needed", "extra"),
    [
        ("postgresql://db/x", "psycopg", "postgresql (psycopg)", "postgresql"),
        ("postgresql+asyncpg://db/x", "psycopg", "postgresql (psycopg)", "postgresql"),
        ("mysql://db/x", "pymysql", "mysql (pymysql)", "mysql"),
        ("mariadb://db/x", "pymysql", "mariadb (pymysql)", "mysql"),
    ],
)
def test_a_missing_driver_names_the_pip_command(url, module, needed, extra, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(MissingDependency) as caught:
        make_engine(url, "outbox-consumer")

    assert str(caught.value) == (
        f"{needed} needs an extra that is not installed: pip install 'outbox-consumer[{extra}]'"
    )


def test_a_driver_of_the_users_own_choice_has_no_extra_of_ours(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg2", None)

    with pytest.raises(
        ConfigurationError,
        match=r"the driver of database-url is not installed .*psycopg2.*the outbox speaks postgresql",
    ):
        make_engine("postgresql+psycopg2://db/x", "outbox-publisher")


def test_an_async_driver_that_has_no_known_twin_is_refused():
    with pytest.raises(ConfigurationError) as caught:
        make_engine("mssql+aioodbc://u:secret@db/x", "outbox-publisher")

    assert str(caught.value) == (
        "database-url names an async driver, mssql+aioodbc: pass engine=…, or write a sync driver's URL"
    )


def test_a_server_is_read_at_read_committed():
    for url in ("postgresql://db/x", "mysql://db/x", "mariadb://db/x"):
        engine = make_engine(url, "outbox-publisher")
        assert engine.dialect._on_connect_isolation_level == "READ COMMITTED"
        engine.dispose()
