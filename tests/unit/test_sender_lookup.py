"""How the settings' names become a sender: built in, installed by another distribution, or `module:attribute`."""

import re
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from importlib import invalidate_caches
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from sqlalchemy import create_engine

from outbox_publisher import Event, HandlerSender, Outbox, PublisherSettings
from outbox_publisher.schema import create_tables
from outbox_publisher.senders import MemorySender, SendResult, sender_for
from outbox_shared.clock import SystemClock
from outbox_shared.errors import ConfigurationError
from outbox_shared.ids import new_event_id

SENDERS = """
from outbox_publisher import Handlers
from outbox_publisher.senders import MemorySender

class Pigeon(MemorySender):
    def __init__(self, settings, clock):
        super().__init__()
        self.settings, self.clock = settings, clock

class Loft:
    fly = Pigeon

def broken(settings, clock):
    raise OSError("no pigeons left")

def halfway(settings, clock):
    return open

handlers = Handlers()
number = 7

@handlers.on("order-created")
def handle(event): ...
"""


@pytest.fixture(autouse=True)
def _in_an_empty_folder(empty_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No settings of the developer's own; and what is imported from there is forgotten afterwards."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if str(empty_folder) in str(getattr(sys.modules[name], "__spec__", "")):
            del sys.modules[name]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module in the working directory, which nothing has put on the path."""
    name = f"pigeons_{uuid4().hex[:8]}"
    (tmp_path / f"{name}.py").write_text(SENDERS)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in {"", str(tmp_path)}])
    return name


Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """install("acme", pigeon="Pigeon") -> as pip would leave a distribution with these entry points into its module."""

    def write(distribution: str, **entries: str) -> None:
        site, module = tmp_path / f"site-{distribution}", f"{distribution}_{uuid4().hex[:8]}"
        info = site / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = [f"{name} = {module}:{attribute}" for name, attribute in entries.items()]
        (info / "entry_points.txt").write_text("\n".join(["[outbox_publisher.senders]", *lines, ""]))
        (site / f"{module}.py").write_text(SENDERS)
        monkeypatch.syspath_prepend(str(site))
        invalidate_caches()

    return write


def settings(**sender: Any) -> PublisherSettings:
    return PublisherSettings(name="shop", sender=sender)


def said_about(**sender: Any) -> str:
    with pytest.raises(ConfigurationError) as caught:
        sender_for(settings(**sender))
    return str(caught.value)


def test_a_type_is_the_name_of_an_installed_sender(install):
    install("acme", Pigeon="Pigeon")
    given, clock = settings(type=" Pigeon "), SystemClock()

    made = sender_for(given, clock)

    assert type(made).__name__ == "Pigeon"
    assert (made.settings, made.clock) == (given, clock)


def test_a_type_that_nobody_brings_lists_what_there_is(install):
    with pytest.raises(ConfigurationError, match=r"write kafka, rabbitmq, handlers or memory$"):
        settings(type="pigeon")

    install("acme", pidgin="Pigeon", carrier="Pigeon")

    with pytest.raises(
        ConfigurationError, match=r"kafka, rabbitmq, handlers or memory, or of the installed ones carrier, pidgin$"
    ):
        settings(type="pigeon")


def test_a_built_in_type_is_never_replaced_by_an_installed_one_of_its_name(install):
    install("acme", memory="Pigeon")

    assert type(sender_for(settings(type="memory"))) is MemorySender
    assert type(sender_for(settings(type="memory", bean_name="memory"))).__name__ == "Pigeon"


def test_a_bean_is_an_entry_point(install):
    install("acme", customKafkaTemplate="Pigeon")

    assert type(sender_for(settings(type="kafka", bean_name="customKafkaTemplate"))).__name__ == "Pigeon"


def test_a_name_that_two_distributions_use_is_no_name(install):
    install("acme", pigeon="Pigeon")
    install("zebra", pigeon="broken")

    said = said_about(bean_name="pigeon")

    assert "'pigeon' is an entry point of " in said
    assert "acme" in said
    assert "zebra" in said


@pytest.mark.parametrize("attribute", ["Pigeon", "Loft.fly"])
def test_a_bean_is_found_in_the_working_directory(module, attribute):
    made = sender_for(settings(bean_name=f"{module}:{attribute}"))

    assert type(made).__name__ == "Pigeon"


def test_a_registry_of_handlers_becomes_a_sender(module):
    made = sender_for(settings(type="handlers", bean_name=f"{module}:handlers"))

    assert isinstance(made, HandlerSender)
    made.close()


def test_the_seed_documents_bean_is_missed_only_where_a_sender_is_built(install):
    given = settings(type="kafka", bean_name="customKafkaTemplate")
    assert given.sender.bean_name == "customKafkaTemplate"

    with pytest.raises(
        ConfigurationError, match=r"'customKafkaTemplate' names nothing.*\(none is installed\).*module:attribute"
    ):
        sender_for(given)
    install("acme", pigeon="Pigeon")
    with pytest.raises(ConfigurationError, match=r"the group outbox_publisher\.senders \(pigeon\)"):
        sender_for(given)


@pytest.mark.parametrize(
    ("attribute", "said"),
    [
        ("broken", "no sender could be made: OSError: no pigeons left"),
        ("halfway", "a sender has the methods send and close"),
        ("handle", r"no sender could be made: TypeError: .*a function \(settings, clock\) that returns a sender"),
        ("number", r"is an object of class int; it must be a function \(settings, clock\)"),
        ("Loft.land", "Loft has no land"),
        ("loft", "has no loft"),
    ],
)
def test_what_a_bean_cannot_do_is_told_with_its_name(module, attribute, said):
    with pytest.raises(ConfigurationError, match=said) as caught:
        sender_for(settings(type="kafka", bean_name=f"{module}:{attribute}"))

    assert f"outbox.publisher.sender.bean-name '{module}:{attribute}'" in str(caught.value)


def test_a_registry_is_no_kafka(module):
    assert "write type: handlers" in said_about(type="kafka", bean_name=f"{module}:handlers")


def test_a_module_that_is_missing_or_fails_is_named(module, tmp_path):
    Path(tmp_path / f"failing_{module}.py").write_text("1 / 0")

    assert f"importing no_{module} failed: ModuleNotFoundError" in said_about(bean_name=f"no_{module}:handlers")
    assert f"importing failing_{module} failed: ZeroDivisionError" in said_about(bean_name=f"failing_{module}:handlers")


@pytest.mark.parametrize("name", ["shop.events", ":handlers", "shop.events:"])
def test_half_a_path_names_nothing(name):
    assert "names nothing" in said_about(bean_name=name)


def test_handlers_need_to_be_named_or_passed():
    said = said_about(type="handlers")

    assert "sender=HandlerSender(handlers, settings.sender)" in said
    assert "bean-name" in said


def test_without_a_type_there_is_no_sender():
    assert "set outbox.publisher.sender.type to kafka, rabbitmq, handlers or memory" in said_about()


def test_the_command_line_finds_handlers_in_the_working_directory(tmp_path):
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/events.py").write_text(
        "import os, signal\n"
        "from outbox_publisher import Handlers\n"
        "handlers = Handlers()\n"
        "@handlers.on('order-created')\n"
        "def handle(event):\n"
        "    print('handled', event.json(), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    (tmp_path / "outbox.yml").write_text(
        "outbox:\n"
        "  database-url: sqlite:///shop.db\n"
        "  publisher: {name: shop, sender: {type: handlers, bean-name: 'shop.events:handlers'}}\n"
    )
    given = PublisherSettings.load()
    engine = create_engine(given.require_database_url())
    create_tables(engine, given.tables.names)
    with engine.begin() as connection:
        Outbox(given).publish(connection, "order-created", {"order": 7})
    engine.dispose()
    command = str(Path(sysconfig.get_path("scripts")) / "outbox-publisher")

    done = subprocess.run([command, "run"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)

    assert (done.returncode, done.stdout) == (0, "handled {'order': 7}\n"), done.stderr


# What the page shows.

PAGE = Path(__file__).parents[2] / "docs/how-to/senders.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_pages_own_sender_is_found_by_the_pages_entry_point(tmp_path, monkeypatch):
    (code,) = [block for block in blocks("python") if block.startswith("# acme_outbox.py")]
    project = tomllib.loads(blocks("toml")[0])["project"]
    info = tmp_path / "site/acme_outbox-1.0.dist-info"
    info.mkdir(parents=True)
    (tmp_path / "site/acme_outbox.py").write_text(code)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n")
    ((name, value),) = project["entry-points"]["outbox_publisher.senders"].items()
    (info / "entry_points.txt").write_text(f"[outbox_publisher.senders]\n{name} = {value}\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))

    sender = sender_for(settings(type=name))
    event = Event(
        id=new_event_id(), event_type="order-created", topic="orders", key=None, payload=b"{}",
        content_type="application/json", created_at=datetime.now(UTC),
    )  # fmt: skip
    (result,) = sender.send([event], 0.0).results()

    assert result == SendResult.delivered()
    assert Path("outbox-files/orders.jsonl").read_bytes() == b"{}\n"


def test_the_pages_settings_load_and_its_handlers_are_found(tmp_path):
    (code,) = [block for block in blocks("python") if block.startswith("# school/events.py")]
    folder = tmp_path / "school"
    folder.mkdir()
    (folder / "events.py").write_text(code)

    for block in blocks("yaml"):
        Path("outbox.yml").write_text(block)
        loaded = PublisherSettings.load()

    assert loaded.sender.type == "handlers"
    assert isinstance(sender_for(loaded), HandlerSender)


def test_the_pages_test_runs():
    (code,) = [block for block in blocks("python") if "MemorySender" in block]

    exec(code, {})
