"""Settings: file, environment and code say the same things, and every mistake names its key."""

from datetime import timedelta
from pathlib import Path

import pytest

from outbox_publisher import PublisherSettings
from outbox_shared.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _in_an_empty_folder(empty_folder: Path) -> None:
    """No file and no variable of the developer's own."""


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
    ("written", "kept"),
    [("rabbit_mq", "rabbitmq"), ("rabbitmq", "rabbitmq"), ("rabbit-mq", "rabbitmq"), ("Kafka", "kafka"), ("handlers", "handlers")],
)  # fmt: skip
def test_a_sender_has_one_spelling_inside(written, kept):
    assert PublisherSettings(sender={"type": written}).sender.type == kept


def test_an_empty_block_is_a_block_without_keys():
    Path("outbox.yml").write_text(
        "outbox:\n  publisher:\n    sender:\n    defaults: {topic: all}\n    events:\n      order-created:\n"
    )

    assert PublisherSettings.load().delivery_of("order-created").topic == "all"


def test_servers_may_be_a_list():
    settings = PublisherSettings(sender={"kafka": {"bootstrap-servers": ["a:9092", "b:9092"]}})

    assert settings.sender.kafka.bootstrap_servers == "a:9092,b:9092"


def test_ordering_by_key_can_be_written():
    assert PublisherSettings(ordering="key").ordering == "key"


def test_an_event_is_checked_with_what_it_inherits():
    # alone, a delay of 2h is above the default max-delay of 1h; with what it inherits it is not
    settings = PublisherSettings(defaults={"backoff": {"max-delay": "5h"}}, events={"a": {"backoff": {"delay": "2h"}}})

    assert settings.delivery_of("a").backoff.max_delay == timedelta(hours=5)


def test_without_backoff_its_longest_delay_does_not_matter():
    PublisherSettings(defaults={"backoff": {"enabled": False, "delay": "2h"}})


def test_a_lock_in_redis_needs_one():
    PublisherSettings(lock="redis", redis_url="redis://localhost")
    PublisherSettings(lock="database")

    with pytest.raises(ConfigurationError) as caught:
        PublisherSettings(lock="redis")

    assert str(caught.value) == (
        "the settings cannot work:\n"
        "  publisher.lock is redis, and no Redis is configured: set outbox.redis-url (OUTBOX_REDIS_URL)"
    )


def test_what_may_be_secret_is_not_shown():
    settings = PublisherSettings(
        database_url="postgresql://shop:secret@db/shop",
        redis_url="redis://:secret@cache",
        sender={"kafka": {"properties": {"sasl.password": "secret"}}, "rabbitmq": {"url": "amqp://u:secret@mq"}},
    )

    assert "secret" not in repr(settings) + str(settings)


def test_a_config_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("OUTBOX_CONFIG", "nowhere.yml")

    with pytest.raises(ConfigurationError, match=r"OUTBOX_CONFIG names nowhere\.yml, which is not a file"):
        PublisherSettings.load()


def test_a_mistake_in_code_is_explained_too():
    with pytest.raises(ConfigurationError, match="databse-url: no such setting; did you mean database-url"):
        PublisherSettings(databse_url="sqlite://")

    with pytest.raises(
        ConfigurationError, match=r"outbox\.publisher\.databse-url: .* did you mean outbox\.database-url\?"
    ):
        PublisherSettings.load(databse_url="sqlite://")


def test_all_mistakes_are_told_at_once():
    with pytest.raises(ConfigurationError) as caught:
        PublisherSettings(lease="soon", defaults={"batch-size": 0, "topik": "orders"})

    assert str(caught.value).splitlines() == [
        "the settings cannot work:",
        "  defaults.batch-size: write 1 or more, not 0",
        "  defaults.topik: no such setting; did you mean topic?",
        "  lease: write a duration with its unit, such as 500ms, 10s, 5m, 2h or 7d, not 'soon'",
    ]
