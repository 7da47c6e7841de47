"""Every kind of mistake in a file or a variable, and the line that it prints."""

# ruff: noqa: E501 - a line stands here exactly as it is printed

from pathlib import Path

import pytest

from outbox_consumer import ConsumerSettings
from outbox_publisher import PublisherSettings
from outbox_shared.errors import ConfigurationError


@pytest.fixture(autouse=True)
def _in_an_empty_folder(empty_folder: Path) -> None:
    """No file and no variable of the developer's own."""


def said_about(settings: type, yaml: str | None = None) -> str:
    if yaml is not None:
        Path("outbox.yml").write_text(yaml, encoding="utf-8")
    with pytest.raises(ConfigurationError) as caught:
        settings.load()
    return str(caught.value).removeprefix("the settings cannot work:\n  ")


DURATION = "write a duration with its unit, such as 500ms, 10s, 5m, 2h or 7d"
KNOWN = "clean-up, defaults, dlq, enabled, events, lease, lock, max-batch-bytes, max-payload, metrics, name, ordering, sender, stuck-recovery, wakeup, window"
BLOCK = "here stand keys and values, a block, not a single value"

PUBLISHER = [
    # a key that does not exist
    ("leese: 3s", "outbox.publisher.leese: no such setting; did you mean lease?"),
    ("events: {a_b-c: {batch-sise: 1}}", "outbox.publisher.events.a_b-c.batch-sise: no such setting; did you mean batch-size?"),
    ("batch-size: 5", "outbox.publisher.batch-size: no such setting; did you mean outbox.publisher.defaults.batch-size?"),
    ("xyzzy: 5", f"outbox.publisher.xyzzy: no such setting; known here: {KNOWN}"),
    # a value of the wrong kind
    ("lease: 30", f"outbox.publisher.lease: {DURATION}, not 30"),
    ("defaults: {batch-size: many}", "outbox.publisher.defaults.batch-size: write a whole number, not 'many'"),
    ("max-payload: 1.5", "outbox.publisher.max-payload: write a whole number, not 1.5"),
    ("defaults: {backoff: {jitter: x}}", "outbox.publisher.defaults.backoff.jitter: write a number, not 'x'"),
    ("defaults: {backoff: {multiplier: .inf}}", "outbox.publisher.defaults.backoff.multiplier: write a number, not inf"),
    ("dlq: {enabled: perhaps}", "outbox.publisher.dlq.enabled: write true or false, not 'perhaps'"),
    ("sender: kafka", f"outbox.publisher.sender: {BLOCK}"),
    ("events: orders", f"outbox.publisher.events: {BLOCK}"),
    ("sender: {kafka: {bootstrap-servers: 5}}", "outbox.publisher.sender.kafka.bootstrap-servers: write text, in quotes where YAML would read something else"),
    ("sender: {kafka: {properties: {a.b: [1]}}}", "outbox.publisher.sender.kafka.properties.a.b: write text, a number, true or false"),
    ("metrics: {gauge: {cache: {ttls: 60s}}}", "outbox.publisher.metrics.gauge.cache.ttls: write a list, in [ ]"),
    # a value that is one of several
    ("sender: {type: kafak}", "outbox.publisher.sender.type: there is no sender 'kafak'; write kafka, rabbitmq, handlers or memory"),
    ("ordering: keys", "outbox.publisher.ordering: write none or key, not 'keys'"),
    ("wakeup: listen", "outbox.publisher.wakeup: write notify or poll, not 'listen'"),
    ("lock: zookeeper", "outbox.publisher.lock: write none, database or redis, not 'zookeeper'"),
    # a value out of bounds
    ("events: {a_b-c: {batch-size: 0}}", "outbox.publisher.events.a_b-c.batch-size: write 1 or more, not 0"),
    ("defaults: {max-retries: 40000}", "outbox.publisher.defaults.max-retries: write 30000 or less, not 40000"),
    ("defaults: {backoff: {multiplier: 0.5}}", "outbox.publisher.defaults.backoff.multiplier: write 1 or more, not 0.5"),
    ("defaults: {fixed-delay: 0}", "outbox.publisher.defaults.fixed-delay: write 1ms or more, not 0s"),
    ("sender: {publish-timeout: 0}", "outbox.publisher.sender.publish-timeout: write 1ms or more, not 0s"),
    ("defaults: {topic: ''}", "outbox.publisher.defaults.topic: write some text, or leave the key out"),
    ("name: ' shop'", "outbox.publisher.name: write 1 to 100 printable characters without blanks around them, such as shop"),
    (f"name: {'x' * 101}", "outbox.publisher.name: write 1 to 100 printable characters without blanks around them, such as shop"),
    ("sender: {rabbitmq: {url: 'http://u:secret@mq'}}", "outbox.publisher.sender.rabbitmq.url: write a URL such as amqp://user@host:5672/vhost, or amqps:// for TLS"),
    ("dlq: {metrics: {gauge: {cache: {ttls: [1s]}}}}", "outbox.publisher.dlq.metrics.gauge.cache.ttls: write three durations such as [60s, 60s, 60s]: for all events, by status, by type and status; not 1"),
    ("metrics: {gauge: {cache: {ttls: [1s, 2s, 3]}}}", f"outbox.publisher.metrics.gauge.cache.ttls.3: {DURATION}, not 3"),
    # an event type that cannot be stored
    ("events: {'': {}}", "outbox.publisher.events: an event type has a name, such as order-created; this one is empty"),
    ("events: {'a ': {}}", "outbox.publisher.events: an event type has no blanks around it: write 'a', not 'a '"),
    ('events: {"a\\0b": {}}', r"outbox.publisher.events: an event type is text without NUL and surrogates, unlike 'a\x00b'"),
    ("events: {on: {}}", "outbox.publisher.events: an event type is text, and True was read as something else: write its name in quotes"),
    (f"events: {{{'x' * 256}: {{}}}}", f"outbox.publisher.events: an event type has at most 200 characters; '{'x' * 40}'… has 256"),
    # what does not fit together
    ("lease: 6s", "outbox.publisher: lease 6s is too short: a send may take publish-timeout 5s and its settle 3s; write lease: 8s or more"),
    ("sender: {emergency-timeout: 3s}", "outbox.publisher: sender.emergency-timeout 3s ends a whole batch before sender.publish-timeout 5s ends one send; write emergency-timeout: 5s or more"),
    ("stuck-recovery: {max-batch-processing-time: 60s}", "outbox.publisher: stuck-recovery.max-batch-processing-time 1m would take batches from relays that still work on them, for up to sender.emergency-timeout 2m; write max-batch-processing-time: 2m or more"),
    ("defaults: {backoff: {delay: 2h}}", "outbox.publisher: defaults.backoff.max-delay 1h is below defaults.backoff.delay 2h; write max-delay: 2h or more"),
    ("events: {a_b-c: {backoff: {max-delay: 5s}}}", "outbox.publisher: events.a_b-c.backoff.max-delay 5s is below events.a_b-c.backoff.delay 10s; write max-delay: 10s or more"),
    ("lock: redis", "publisher.lock is redis, and no Redis is configured: set outbox.redis-url (OUTBOX_REDIS_URL)"),
]  # fmt: skip


@pytest.mark.parametrize(("section", "line"), PUBLISHER)
def test_in_the_publishers_section(section, line):
    assert said_about(PublisherSettings, f"outbox: {{publisher: {{{section}}}}}") == line


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("lock-timeot: 5s", "outbox.consumer.lock-timeot: no such setting; did you mean lock-timeout?"),
        ("lock-timeout: 2d", "outbox.consumer.lock-timeout: a delivery waits for its twin between 1ms and 1d, such as 5s, not 2d"),
        ("clean-up: {ttl: 0}", "outbox.consumer.clean-up.ttl: write 1ms or more, not 0s"),
        ("cleanup: {}", "outbox.consumer.cleanup: no such setting; did you mean clean-up?"),
        ("database-url: shop", "outbox.consumer.database-url: write a URL such as postgresql://user@host/database or sqlite:///shop.db"),
        ("cache: {cache-name: a b}", "outbox.consumer.cache.cache-name: write a prefix for Redis keys without blanks, such as outbox:consumed"),
        ("cache: {redis-url: localhost}", "outbox.consumer.cache.redis-url: write a URL such as redis://host:6379/0, or rediss:// for TLS"),
        ("cache: {ttl: 8d}", "outbox.consumer: cache.ttl 8d is longer than the rows behind it are kept, clean-up.ttl 7d; write cache.ttl: 7d or less"),
        ("cache: {enabled: true}, clean-up: {ttl: 30m}", "outbox.consumer: cache.ttl 1h is longer than the rows behind it are kept, clean-up.ttl 30m; write cache.ttl: 30m or less"),
        ("name: ' billing'", "outbox.consumer.name: a consumer's name has no blanks around it: write 'billing', not ' billing'"),
    ],
)  # fmt: skip
def test_in_the_consumers_section(section, line):
    assert said_about(ConsumerSettings, f"outbox: {{consumer: {{{section}}}}}") == line


UNREADABLE = (
    "outbox.database-url: this URL cannot be read; write postgresql://user:password@host:5432/database, "
    "and in the password %40 for @, %3A for :, %2F for /"
)


@pytest.mark.parametrize("settings", [PublisherSettings, ConsumerSettings])
@pytest.mark.parametrize(
    ("yaml", "line"),
    [
        ("outbox: {tabels: {}}", "outbox.tabels: no such setting; did you mean tables?"),
        ("outbox: {database-url: shop}", "outbox.database-url: write a URL such as postgresql://user@host/database or sqlite:///shop.db"),
        ("outbox: {database-url: 'postgresql://shop:secret@db:port/x'}", UNREADABLE),
        ("outbox: {database-url: {password: secret}}", "outbox.database-url: write text, in quotes where YAML would read something else"),
        ("outbox: {redis-url: 'http://u:secret@cache'}", "outbox.redis-url: write a URL such as redis://host:6379/0, or rediss:// for TLS"),
        ("outbox: {thread-pool-size: 0}", "outbox.thread-pool-size: write 1 or more, not 0"),
        ("outbox: {tables: {prefix: 'x; drop'}}", "tables.prefix must be a plain SQL identifier (letters, digits, underscore, at most 36), not 'x; drop'"),
        ("outbox: {tables: {auto-create: true, auto_create: true}}", "auto_create is written twice in one block, with - and with _: keep one of them"),
        ("publisher: {lease: 30s}", "outbox.yml: everything stands under one top-level key, `outbox:`"),
        ("outbox: [1]", "outbox.yml: under `outbox:` stand keys and values, a block, not a single value"),
        ("outbox: {database-url: 'postgresql://u:secret@db", "outbox.yml is not YAML: line 1, column 49: found unexpected end of stream"),
    ],
)  # fmt: skip
def test_in_what_both_read(settings, yaml, line):
    assert said_about(settings, yaml) == line


def test_in_toml_and_in_text_that_is_none():
    Path("outbox.toml").write_text("[outbox")
    assert said_about(PublisherSettings).startswith("outbox.toml is not TOML: ")

    Path("outbox.yaml").write_bytes(b"outbox: {publisher: {name: \xff}}")
    assert said_about(PublisherSettings) == "outbox.yaml is not text in UTF-8"


JSON = "write all of them as JSON"


@pytest.mark.parametrize(
    ("variable", "value", "line"),
    [
        ("OUTBOX_PUBLISHER__LEESE", "1s", "OUTBOX_PUBLISHER__LEESE: no such setting; did you mean OUTBOX_PUBLISHER__LEASE?"),
        ("OUTBOX_PUBLISHER__BATCH_SIZE", "1", "OUTBOX_PUBLISHER__BATCH_SIZE: no such setting; did you mean OUTBOX_PUBLISHER__DEFAULTS__BATCH_SIZE?"),
        ("OUTBOX_PUBLISHER__DATABASE_URL", "x", "OUTBOX_PUBLISHER__DATABASE_URL: no such setting; did you mean OUTBOX_DATABASE_URL?"),
        ("OUTBOX_PUBLISHER__XYZZY", "1", f"OUTBOX_PUBLISHER__XYZZY: no such setting; known here: {KNOWN}"),
        ("OUTBOX_PUBLISHER__LEASE__SECONDS", "1", "OUTBOX_PUBLISHER__LEASE__SECONDS: no such setting; OUTBOX_PUBLISHER__LEASE holds a value itself"),
        ("OUTBOX_PUBLISHER__LEASE", "1", f"outbox.publisher.lease: {DURATION}, not '1'"),
        ("OUTBOX_PUBLISHER__EVENTS", "orders", "OUTBOX_PUBLISHER__EVENTS holds JSON, such as {…} or […], and this is none"),
        ("OUTBOX_PUBLISHER__EVENTS", '{"a": {"topik": 1}}', "outbox.publisher.events.a.topik: no such setting; did you mean topic?"),
        ("OUTBOX_PUBLISHER__EVENTS__ORDER_CREATED__TOPIC", "orders", f"OUTBOX_PUBLISHER__EVENTS__ORDER_CREATED__TOPIC: {JSON}, OUTBOX_PUBLISHER__EVENTS='{{\"<name>\": …}}': no variable can be called order-created"),
    ],
)  # fmt: skip
def test_in_a_variable(monkeypatch, variable, value, line):
    monkeypatch.setenv(variable, value)

    assert said_about(PublisherSettings) == line
    ConsumerSettings.load()  # not its business
