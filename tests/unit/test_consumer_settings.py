"""What a consumer can be told, and what it says to mistakes."""

from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session, sessionmaker

from outbox_consumer import ConfigurationError, ConsumerSettings, IdempotentConsumer


@pytest.fixture(autouse=True)
def _in_an_empty_folder(empty_folder: Path) -> None:
    """No file and no variable of the developer's own."""


def write(text: str) -> None:
    Path("outbox.yml").write_text(text, encoding="utf-8")


def test_in_code_nothing_else_is_read(monkeypatch: pytest.MonkeyPatch):
    write("outbox: {consumer: {name: from-file}}")
    monkeypatch.setenv("OUTBOX_CONSUMER__NAME", "from-environment")

    settings = ConsumerSettings(database_url="postgresql://db/shop", lock_timeout="2s")

    assert settings.name is None
    assert settings.lock_timeout == timedelta(seconds=2)
    assert settings.database_url == "postgresql+psycopg://db/shop"


def test_the_defaults():
    settings = ConsumerSettings()

    assert settings.lock_timeout == timedelta(seconds=5)
    assert settings.tables.auto_create is True


def test_the_cache_is_off_and_may_still_be_described():
    settings = ConsumerSettings(cache={"cache-name": "shop:consumed"})

    assert (settings.cache.enabled, settings.cache.cache_name) == (False, "shop:consumed")


def test_the_caches_own_redis_wins_over_the_common_one_and_neither_is_needed():
    assert ConsumerSettings(cache={"enabled": True}).cache_redis_url is None
    assert ConsumerSettings(redis_url="redis://common").cache_redis_url == "redis://common"

    both = ConsumerSettings(redis_url="redis://common", cache={"redis-url": "redis://own"})
    assert both.cache_redis_url == "redis://own"


def test_a_short_retention_needs_a_cache_ttl_only_where_there_is_a_cache():
    ConsumerSettings(clean_up={"ttl": "10m"})
    ConsumerSettings(clean_up={"ttl": "10m"}, cache={"enabled": True, "ttl": "10m"})

    with pytest.raises(ConfigurationError, match=r"write cache\.ttl: 10m or less"):
        ConsumerSettings(clean_up={"ttl": "10m"}, cache={"enabled": True})


def test_environment_wins_over_file_and_arguments_over_both(monkeypatch: pytest.MonkeyPatch):
    write("outbox: {consumer: {name: from-file, lock-timeout: 1s}}")
    monkeypatch.setenv("OUTBOX_CONSUMER__LOCK_TIMEOUT", "7s")

    settings = ConsumerSettings.load()

    assert (settings.name, settings.lock_timeout) == ("from-file", timedelta(seconds=7))
    assert ConsumerSettings.load(name="given").name == "given"


def test_the_consumers_own_database_wins_over_the_common_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "postgresql://common/db")
    assert ConsumerSettings.load().require_database_url() == "postgresql+psycopg://common/db"

    monkeypatch.setenv("OUTBOX_CONSUMER__DATABASE_URL", "postgresql://own/db")
    assert ConsumerSettings.load().require_database_url() == "postgresql+psycopg://own/db"


def test_the_publishers_section_is_left_alone(monkeypatch: pytest.MonkeyPatch):
    write("outbox: {publisher: {sender: {type: kafka}, no-such-key: 1}}")
    monkeypatch.setenv("OUTBOX_PUBLISHER__ALSO_UNKNOWN", "1")

    assert ConsumerSettings.load(name="billing").name == "billing"


def test_mistakes_name_the_nearest_key(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigurationError, match="did you mean lock-timeout"):
        ConsumerSettings(lock_timeot="5s")

    write("outbox: {consumer: {lock-timeot: 5s}}")
    with pytest.raises(
        ConfigurationError, match=r"outbox\.consumer\.lock-timeot: no such setting; did you mean lock-timeout"
    ):
        ConsumerSettings.load()


def test_an_unknown_variable_of_the_section_is_a_mistake(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OUTBOX_CONSUMER__LOCKTIMEOUT", "5s")

    with pytest.raises(ConfigurationError, match="did you mean OUTBOX_CONSUMER__LOCK_TIMEOUT"):
        ConsumerSettings.load()


@pytest.mark.parametrize("value", ["0", "0s", "2d", "5", "-1s", "soon"])
def test_a_lock_timeout_that_cannot_work_is_refused(value: str):
    with pytest.raises(ConfigurationError, match="lock-timeout"):
        ConsumerSettings(lock_timeout=value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "cannot be empty"),
        (" billing", "write 'billing'"),
        ("billing\n", "write 'billing'"),
        ("bil\x00ling", "printable"),
        ("b" * 201, "at most 200 characters"),
    ],
)
def test_a_name_that_would_not_be_the_same_next_time_is_refused(name: str, said: str):
    with pytest.raises(ConfigurationError) as raised:
        ConsumerSettings(name=name)
    assert said in str(raised.value)

    engine = create_engine("sqlite://")
    with pytest.raises(ConfigurationError) as raised:
        IdempotentConsumer(engine, name=name)
    assert said in str(raised.value)
    engine.dispose()


def test_a_consumer_needs_a_name_from_somewhere():
    engine = create_engine("sqlite://")

    with pytest.raises(ConfigurationError, match=r"consumer\.name \(OUTBOX_CONSUMER__NAME\)"):
        IdempotentConsumer(engine)
    with pytest.raises(ConfigurationError, match="not int"):
        IdempotentConsumer(engine, name=7)  # type: ignore[arg-type]

    assert IdempotentConsumer(engine, settings=ConsumerSettings(name="billing")).name == "billing"
    assert IdempotentConsumer(engine, name="shipping", settings=ConsumerSettings(name="billing")).name == "shipping"
    assert IdempotentConsumer(engine, name="b" * 200).name == "b" * 200
    engine.dispose()


def test_a_consumer_that_is_turned_off_cannot_be_built():
    engine = create_engine("sqlite://")

    with pytest.raises(ConfigurationError, match=r"consumer\.enabled is false"):
        IdempotentConsumer(engine, settings=ConsumerSettings(name="billing", enabled=False))

    engine.dispose()


class AsyncEngine:
    """Only its name matters: SQLAlchemy's own needs greenlet."""


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (Session, "claim"),
        (lambda engine: engine.connect(), "sessionmaker\\(connection\\)"),
        (lambda engine: AsyncEngine(), "async"),
        (lambda engine: "postgresql://db", "not str"),
        (lambda engine: sessionmaker, "not type"),
    ],
)
def test_anything_but_a_source_of_sessions_is_refused(make, said: str):
    engine = create_engine("sqlite://")
    given = make(engine)

    with pytest.raises(TypeError, match=said):
        IdempotentConsumer(given, name="billing")

    getattr(given, "close", lambda: None)()
    engine.dispose()
