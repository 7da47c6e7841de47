"""The reference lists exactly the keys that exist, with exactly their defaults: it cannot go stale unnoticed."""

import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import yaml

from outbox_consumer import ConsumerSettings
from outbox_consumer.settings import _Tree as ConsumerTree
from outbox_publisher import PublisherSettings
from outbox_publisher.settings import _Tree as PublisherTree
from outbox_shared.durations import format_duration
from outbox_shared.settings import default_pool_size
from outbox_shared.settings_keys import keys_of

REFERENCE = Path(__file__).parents[2] / "docs/reference/settings.md"
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \| (.+) \|$")
COMPUTED = {"thread-pool-size": "min(CPUs, 5)"}


def documented() -> dict[str, str]:
    rows = [ROW.match(line) for line in REFERENCE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert all(rows)
    keys = [row[1] for row in rows if row]
    assert len(keys) == len(set(keys))
    return {row[1]: row[2] for row in rows if row}


def existing() -> dict[str, str]:
    return {path: COMPUTED.get(path, shown) for tree in (PublisherTree, ConsumerTree) for path, shown in _shown(tree)}


def _shown(tree: Any) -> Iterator[tuple[str, str]]:
    for path, field in keys_of(tree):
        if field.annotation is not Any:  # the other package's section
            yield path, as_written(field.get_default(call_default_factory=True, validated_data={}))


def as_written(value: Any) -> str:
    match value:
        case None:
            return "none"
        case bool():
            return str(value).lower()
        case timedelta():
            return format_duration(value)
        case tuple():
            return f"[{', '.join(map(as_written, value))}]"
        case float():
            return f"{value:g}"
    return str(value)


def test_every_key_is_listed_with_its_default():
    assert documented() == existing()


def test_the_defaults_that_the_design_fixes():
    keys = existing()

    assert {key: keys[f"publisher.{key}"] for key in (
        "lease", "defaults.initial-delay", "defaults.fixed-delay", "defaults.batch-size", "stuck-recovery.fixed-delay", "clean-up.ttl",
        "dlq.enabled", "dlq.transfer-to-fixed-delay", "dlq.transfer-from-fixed-delay", "dlq.clean-up.ttl", "dlq.replay-window",
        "metrics.gauge.enabled", "sender.publish-timeout", "sender.emergency-timeout", "sender.unknown-topic-grace",
    )} == {
        "lease": "30s", "defaults.initial-delay": "0s", "defaults.fixed-delay": "500ms", "defaults.batch-size": "500",
        "stuck-recovery.fixed-delay": "30s", "clean-up.ttl": "1h", "dlq.enabled": "true", "dlq.transfer-to-fixed-delay": "30s",
        "dlq.transfer-from-fixed-delay": "5s", "dlq.clean-up.ttl": "30d", "dlq.replay-window": "7d", "metrics.gauge.enabled": "true",
        "sender.publish-timeout": "5s", "sender.emergency-timeout": "2m", "sender.unknown-topic-grace": "10s",
    }  # fmt: skip
    assert (keys["consumer.clean-up.ttl"], keys["consumer.cache.enabled"]) == ("7d", "false")
    assert default_pool_size() == min(os.cpu_count() or 1, 5)


def test_the_documents_own_example_loads(empty_folder):
    examples = re.findall(r"```yaml\n(.*?)```", REFERENCE.read_text(encoding="utf-8"), re.DOTALL)
    for example in examples:
        Path("outbox.yml").write_text(example)
        PublisherSettings.load()
        ConsumerSettings.load()

    assert yaml.safe_load(examples[0])["outbox"]["consumer"] == {"name": "billing"}
