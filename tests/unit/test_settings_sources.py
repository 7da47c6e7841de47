"""Where settings come from, and who wins: arguments over environment over .env (for commands) over file."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as run_with
from hypothesis import strategies as st

from outbox_consumer import ConsumerSettings
from outbox_publisher import PublisherSettings
from outbox_shared.durations import format_duration
from outbox_shared.errors import ConfigurationError
from outbox_shared.settings_keys import keys_of
from outbox_shared.settings_sources import normalise, variable_of

IN_ONE_FOLDER = run_with(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=40)


@pytest.fixture(autouse=True)
def _in_an_empty_folder(empty_folder: Path) -> None:
    """No file and no variable of the developer's own."""


DEFAULTS = st.fixed_dictionaries(
    {},
    optional={
        "batch-size": st.integers(1, 10_000),
        "max-retries": st.integers(0, 30_000),
        "fixed-delay": st.integers(1, 10**9).map(lambda ms: format_duration(timedelta(milliseconds=ms))),
        "initial-delay": st.integers(0, 10**9).map(lambda ms: format_duration(timedelta(milliseconds=ms))),
        "topic": st.text("abc-_.", min_size=1, max_size=20),
    },
)
EVENT_TYPE = st.text("abc-_. Ä", min_size=1, max_size=30).filter(lambda name: name == name.strip())


@IN_ONE_FOLDER
@given(block=DEFAULTS, event_type=EVENT_TYPE, spelling=st.sampled_from(["-", "_"]))
def test_kebab_is_snake_for_our_keys_and_never_for_event_types(block, event_type, spelling):
    respelled = {key.replace("-", spelling): value for key, value in block.items()}
    Path("outbox.yml").write_text(json.dumps({"outbox": {"publisher": {"events": {event_type: respelled}}}}))

    settings = PublisherSettings.load()

    assert list(settings.events) == [event_type]
    assert settings == PublisherSettings(events={event_type: block})


@IN_ONE_FOLDER
@given(in_file=DEFAULTS, in_environment=DEFAULTS, in_call=DEFAULTS)
def test_the_later_source_wins_key_by_key(in_file, in_environment, in_call):
    Path("outbox.yml").write_text(json.dumps({"outbox": {"publisher": {"defaults": in_file}}}))
    variables = {variable_of(["publisher", "defaults", key]): str(value) for key, value in in_environment.items()}

    with mock.patch.dict("os.environ", variables):
        settings = PublisherSettings.load(defaults=in_call)

    assert settings == PublisherSettings(defaults={**in_file, **in_environment, **in_call})


def test_every_key_can_be_given_as_a_variable(monkeypatch):
    given = {
        "publisher.sender.type": "rabbit_mq", "publisher.dlq.clean-up.ttl": "9d",
        "publisher.metrics.gauge.cache.ttls": '["1s", "2s", "3s"]',
        "publisher.stuck-recovery.max-batch-processing-time": "10m", "tables.schema": "messaging", "thread-pool-size": "3",
        "publisher.sender.kafka.properties": '{"linger.ms": 5, "a-b": "c"}', "redis-url": "redis://cache", "publisher.wakeup": "poll",
    }  # fmt: skip
    for key, value in given.items():
        monkeypatch.setenv(variable_of(key.split(".")), value)

    settings = PublisherSettings.load()

    assert (settings.sender.type, settings.dlq.clean_up.ttl) == ("rabbitmq", timedelta(days=9))
    assert settings.metrics.gauge.cache.ttls == tuple(timedelta(seconds=n) for n in (1, 2, 3))
    assert settings.stuck_recovery.max_batch_processing_time == timedelta(minutes=10)
    assert (settings.tables.names.schema, settings.thread_pool_size) == ("messaging", 3)
    assert settings.sender.kafka.properties == {"linger.ms": 5, "a-b": "c"}
    assert (settings.redis_url, settings.wakeup) == ("redis://cache", "poll")


def test_a_more_exact_variable_wins_over_json(monkeypatch):
    monkeypatch.setenv("OUTBOX_PUBLISHER", '{"lease": "40s", "defaults": {"batch-size": 1, "topic": "orders"}}')
    monkeypatch.setenv("OUTBOX_PUBLISHER__DEFAULTS__BATCH_SIZE", "2")

    settings = PublisherSettings.load()

    assert (settings.lease, settings.defaults.batch_size) == (timedelta(seconds=40), 2)
    assert settings.defaults.topic == "orders"


def test_an_empty_variable_counts_as_not_set(monkeypatch):
    Path("outbox.yml").write_text("outbox: {database-url: 'sqlite:///x.db'}")
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "")
    monkeypatch.setenv("OUTBOX_CONFIG", "")

    assert PublisherSettings.load().database_url == "sqlite:///x.db"


@pytest.mark.parametrize("settings", [PublisherSettings, ConsumerSettings])
@pytest.mark.parametrize(
    "name",
    ["OUTBOX_SERVICE_HOST", "OUTBOX_PORT_80_TCP_ADDR", "OUTBOX_PUBLISHER_SERVICE_PORT",
     "OUTBOX_CONSUMER_PORT", "OUTBOX_TABLES__X", "OUTBOX_X__Y"],
)  # fmt: skip
def test_unknown_variables_elsewhere_are_not_ours(settings, name, monkeypatch):
    monkeypatch.setenv(name, "tcp://10.0.0.1:80")

    settings.load()


def test_a_section_is_checked_by_its_own_package_alone(monkeypatch):
    monkeypatch.setenv("OUTBOX_CONSUMER__NAMME", "x")
    PublisherSettings.load()
    with pytest.raises(ConfigurationError, match="did you mean OUTBOX_CONSUMER__NAME"):
        ConsumerSettings.load()

    monkeypatch.delenv("OUTBOX_CONSUMER__NAMME")
    monkeypatch.setenv("OUTBOX_PUBLISHER__NAMME", "x")
    ConsumerSettings.load()
    with pytest.raises(ConfigurationError, match="did you mean OUTBOX_PUBLISHER__NAME"):
        PublisherSettings.load()


Load = Callable[[], PublisherSettings | ConsumerSettings]


@pytest.mark.parametrize(
    ("load", "load_for_cli"),
    [
        (PublisherSettings.load, PublisherSettings.load_for_cli),
        (ConsumerSettings.load, ConsumerSettings.load_for_cli),
    ],
)
def test_dotenv_is_for_commands_and_stands_between_file_and_environment(load: Load, load_for_cli: Load, monkeypatch):
    Path("outbox.yml").write_text(
        "outbox: {database-url: 'sqlite:///file.db', tables: {prefix: file_}, redis-url: 'redis://file'}"
    )
    Path(".env").write_text(
        "# ours and others'\nOUTBOX_DATABASE_URL=sqlite:///dotenv.db\nexport OUTBOX_TABLES__PREFIX='dotenv_'\nOTHER=1\nEMPTY\n"
    )
    monkeypatch.setenv("OUTBOX_TABLES__PREFIX", "environment_")

    command, code = load_for_cli(), load()

    assert (command.redis_url, command.database_url, command.tables.prefix) == (
        "redis://file", "sqlite:///dotenv.db", "environment_",
    )  # fmt: skip
    assert code.database_url == "sqlite:///file.db"


def test_dotenv_may_name_the_file_and_its_mistakes_are_mistakes():
    Path("elsewhere.yml").write_text("outbox: {publisher: {name: shop}}")
    Path(".env").write_text("OUTBOX_CONFIG=elsewhere.yml\n")
    assert PublisherSettings.load_for_cli().name == "shop"

    Path(".env").write_text("OUTBOX_PUBLISHER__LEESE=1s\n")
    with pytest.raises(ConfigurationError, match="did you mean OUTBOX_PUBLISHER__LEASE"):
        PublisherSettings.load_for_cli()

    Path(".env").write_bytes(b"OUTBOX_PUBLISHER__NAME=\xff\n")
    with pytest.raises(ConfigurationError, match=r"\.env is not text in UTF-8"):
        PublisherSettings.load_for_cli()


def test_a_virtual_environment_called_dotenv_is_no_file_of_ours():
    Path(".env").mkdir()

    PublisherSettings.load_for_cli()


@pytest.mark.parametrize("name", ["outbox-publisher", "outbox-consumer"])
def test_the_commands_read_dotenv(name, command):
    Path(".env").write_text("OUTBOX_DATABASE_URL=sqlite:///from-dotenv.db\n")

    assert command(name, "init-db")[0] == 0
    assert Path("from-dotenv.db").exists()


def test_no_two_keys_share_a_variable():
    for tree in (PublisherSettings, ConsumerSettings):
        variables = [variable_of(key.path.split(".")) for key in keys_of(tree)]
        assert len(variables) == len(set(variables))


def test_only_keys_of_ours_are_respelled():
    read = normalise(
        {"a-b": [{"c-d": 1}], "events": {"e-f": {"g-h": 1}, "events": {"i-j": 1}}, "properties": {"k-l": {"m": 1}}}
    )

    assert read == {
        "a_b": [{"c_d": 1}], "events": {"e-f": {"g_h": 1}, "events": {"i_j": 1}}, "properties": {"k-l": {"m": 1}},
    }  # fmt: skip
