"""Settings: file, environment and code say the same things, and every mistake names its key."""

from datetime import timedelta
from pathlib import Path

import pytest

from outbox_publisher import PublisherSettings
from outbox_shared.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.chdir(tmp_path)
    for name in ("OUTBOX_CONFIG", "OUTBOX_DATABASE_URL"):
        monkeypatch.delenv(name, raising=False)


YAML = """
outbox:
  database-url: postgres://shop@db/shop
  tables: {prefix: shop_}
  publisher:
    lease: 1m
    sender: {type: kafka, kafka: {bootstrap-servers: "kafka:9092", properties: {compression.type: lz4}}}
    defaults: {batch-size: 50, backoff: {multiplier: 1.5}}
    events:
      order-created: {topic: orders, max-retries: 5, backoff: {delay: 5s}}
  consumer: {whatever: the consumer's own}
"""


def test_a_file_is_read_and_an_event_inherits_what_it_does_not_set():
    Path("outbox.yml").write_text(YAML)

    settings = PublisherSettings.load()

    assert settings.database_url == "postgresql+psycopg://shop@db/shop"
    assert settings.tables.names.of("events") == "shop_events"
    assert settings.lease == timedelta(minutes=1)
    assert settings.sender.kafka.properties == {"compression.type": "lz4"}
    delivery = settings.delivery_of("order-created")
    assert (delivery.topic, delivery.max_retries, delivery.batch_size) == ("orders", 5, 50)
    assert (delivery.backoff.delay, delivery.backoff.multiplier) == (timedelta(seconds=5), 1.5)
    assert settings.delivery_of("anything else").max_retries == 3


def test_toml_says_the_same():
    Path("outbox.toml").write_text('[outbox]\ndatabase-url = "sqlite:///x.db"\n[outbox.publisher]\nlease = "45s"\n')

    settings = PublisherSettings.load()

    assert (settings.database_url, settings.lease) == ("sqlite:///x.db", timedelta(seconds=45))


def test_the_environment_wins_over_the_file_also_for_kebab_keys(monkeypatch):
    Path("outbox.yml").write_text(YAML)
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "sqlite:///other.db")
    monkeypatch.setenv("OUTBOX_PUBLISHER__DEFAULTS__BATCH_SIZE", "7")
    monkeypatch.setenv("OUTBOX_PUBLISHER__SENDER__KAFKA__BOOTSTRAP_SERVERS", "elsewhere:9092")

    settings = PublisherSettings.load()

    assert settings.database_url == "sqlite:///other.db"
    assert settings.delivery_of("order-created").batch_size == 7
    assert settings.sender.kafka.bootstrap_servers == "elsewhere:9092"
    assert settings.sender.type == "kafka"  # the rest of the file's block stands


def test_event_types_come_as_json_in_the_environment(monkeypatch):
    monkeypatch.setenv("OUTBOX_PUBLISHER__EVENTS", '{"order-created": {"topic": "orders", "batch-size": 3}}')

    assert PublisherSettings.load().delivery_of("order-created").batch_size == 3


def test_arguments_win_over_everything(monkeypatch):
    monkeypatch.setenv("OUTBOX_PUBLISHER__LEASE", "40s")

    assert PublisherSettings.load(lease="50s").lease == timedelta(seconds=50)


def test_an_argument_that_is_a_block_is_merged_with_what_was_read():
    Path("outbox.yml").write_text(YAML)

    settings = PublisherSettings.load(defaults={"max-retries": 9}, tables={"schema": "messaging"})

    assert (settings.defaults.max_retries, settings.defaults.batch_size) == (9, 50)
    assert (settings.tables.names.schema, settings.tables.names.prefix) == ("messaging", "shop_")


def test_a_single_variable_wins_over_a_block_of_json(monkeypatch):
    monkeypatch.setenv("OUTBOX_PUBLISHER__DEFAULTS", '{"batch-size": 11, "topic": "orders"}')
    monkeypatch.setenv("OUTBOX_PUBLISHER__DEFAULTS__BATCH_SIZE", "12")

    defaults = PublisherSettings.load().defaults

    assert (defaults.batch_size, defaults.topic) == (12, "orders")


def test_settings_in_code_read_nothing(monkeypatch):
    Path("outbox.yml").write_text(YAML)
    monkeypatch.setenv("OUTBOX_DATABASE_URL", "sqlite:///other.db")

    assert PublisherSettings().database_url is None


def test_what_kubernetes_injects_beside_a_service_called_outbox_is_no_mistake(monkeypatch):
    monkeypatch.setenv("OUTBOX_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("OUTBOX_PORT", "tcp://10.0.0.1:80")

    PublisherSettings.load()


@pytest.mark.parametrize(
    ("yaml", "line"),
    [
        ("outbox: {publisher: {leese: 3s}}", "outbox.publisher.leese: no such setting; did you mean lease?"),
        ("outbox: {tabels: {}}", "outbox.tabels: no such setting; did you mean tables?"),
        ("outbox: {publisher: {lease: 30}}", "outbox.publisher.lease: write a duration with its unit"),
        ("outbox: {publisher: {lease: 6s}}", "outbox.publisher: lease 6s is too short"),
        ("outbox: {publisher: {events: {a-b: {batch-size: 0}}}}", "outbox.publisher.events.a-b.batch-size: "),
        ("outbox: {publisher: {events: {a-b: {batch-sise: 1}}}}", "batch-sise: no such setting; did you mean batch-size?"),
        ("outbox: {database-url: shop}", "outbox.database-url: write a URL such as"),
        ("outbox: {tables: {prefix: 'x; drop'}}", "tables.prefix must be a plain SQL identifier"),
        ("outbox: {publisher: {defaults: {fixed-delay: 0}}}", "outbox.publisher.defaults.fixed-delay: "),
        ("outbox: {publisher: {defaults: {max-retries: 40000}}}", "outbox.publisher.defaults.max-retries: "),
        (f"outbox: {{publisher: {{name: {'x' * 101}}}}}", "outbox.publisher.name: "),
        (f"outbox: {{tables: {{prefix: {'x' * 37}}}}}", "at most 36"),
        ("publisher: {lease: 30s}", "everything stands under one top-level key"),
        ("outbox: [", "is not YAML"),
    ],
)  # fmt: skip
def test_a_mistake_names_its_key_and_what_to_write(yaml, line):
    Path("outbox.yml").write_text(yaml)

    with pytest.raises(ConfigurationError) as caught:
        PublisherSettings.load()

    assert line in str(caught.value)


def test_a_config_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("OUTBOX_CONFIG", "nowhere.yml")

    with pytest.raises(ConfigurationError, match=r"OUTBOX_CONFIG names nowhere\.yml"):
        PublisherSettings.load()


def test_a_mistake_in_code_is_explained_too():
    with pytest.raises(ConfigurationError, match="databse-url: no such setting; did you mean database-url"):
        PublisherSettings(databse_url="sqlite://")
