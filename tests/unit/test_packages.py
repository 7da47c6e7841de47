"""The front doors: what importing a package loads, what it offers, and that the checkout is really installed."""

import importlib
import inspect
import subprocess
import sys
from importlib.metadata import entry_points, version

import pytest

from outbox_shared import errors

PACKAGES = ["outbox_shared", "outbox_publisher", "outbox_consumer"]
LOADED_ONLY_WHERE_NEEDED = [
    "typer",
    "click",
    "rich",
    "yaml",
    "confluent_kafka",
    "pika",
    "redis",
    "psycopg",
    "pymysql",
    "prometheus_client",
    "opentelemetry",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_the_package_is_installed_and_no_empty_namespace(package):
    # the top folders carry the import names: an uninstalled checkout would import them as empty namespaces
    module = importlib.import_module(package)

    assert module.__file__ is not None
    assert module.__version__ == version(package.replace("_", "-")) == version("outbox-shared")


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_loads_no_command_line_no_yaml_and_no_client(package):
    script = f"import {package}, sys; print(*[m for m in {LOADED_ONLY_WHERE_NEEDED!r} if m in sys.modules])"

    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert loaded.stdout.split() == []


@pytest.mark.parametrize("package", PACKAGES)
def test_the_public_names_are_sorted_and_real(package):
    module = importlib.import_module(package)

    assert module.__all__ == sorted(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


def test_publisher_and_consumer_do_not_load_each_other():
    for one, other in (("outbox_publisher", "outbox_consumer"), ("outbox_consumer", "outbox_publisher")):
        script = f"import {one}, sys; sys.exit({other!r} in sys.modules)"
        subprocess.run([sys.executable, "-c", script], check=True)


def test_both_commands_are_installed():
    commands = {entry.name for entry in entry_points(group="console_scripts")}

    assert {"outbox-publisher", "outbox-consumer"} <= commands


def test_the_drawn_error_tree_is_complete():
    drawn = errors.__doc__ or ""
    classes = [
        name for name, thing in vars(errors).items()
        if inspect.isclass(thing) and issubclass(thing, errors.OutboxError)
    ]  # fmt: skip

    assert len(classes) > 10
    assert [name for name in classes if name not in drawn] == []


def test_a_missing_extra_is_one_line_that_names_the_pip_command():
    script = (
        "import sys; sys.modules['confluent_kafka'] = None\n"
        "from outbox_publisher import PublisherSettings\nfrom outbox_publisher.senders import sender_for\n"
        "sender_for(PublisherSettings(sender={'type': 'kafka', 'kafka': {'bootstrap_servers': 'x:1'}}))"
    )

    failed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert failed.stderr.splitlines()[-1].endswith(
        "the Kafka sender needs an extra that is not installed: pip install 'outbox-publisher[kafka]'"
    )
