"""What happens to a relay from outside: it is told to stop, or its database goes away in the middle of a batch."""

import os
import signal
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from outbox_publisher import Relay
from outbox_publisher.demo.relay_process import RelayProcess
from outbox_publisher.schema import create_tables
from outbox_publisher.senders import MemorySender
from outbox_publisher.store import store_for
from outbox_shared.database import make_engine
from outbox_shared.tables import TableNames
from tests.consuming import eventually
from tests.fixtures import OutboxDatabase
from tests.services.ports import free_port

SETTINGS = """
outbox:
  database-url: {url}
  publisher:
    sender: {{type: kafka, kafka: {{bootstrap-servers: "{kafka}"}}}}
    defaults: {{topic: {topic}, batch-size: 20, fixed-delay: 20ms}}
"""


@pytest.mark.slow
@pytest.mark.parametrize("busy", [True, False], ids=["in the middle of a backlog", "idle"])
def test_sigterm_finishes_what_is_under_way_and_leaves_nothing_claimed(
    postgresql_outbox: OutboxDatabase, kafka_url, kafka_topic, tmp_path: Path, busy
):
    database = postgresql_outbox
    database.publish(3000 if busy else 5, topic=(topic := kafka_topic()))
    relay = RelayProcess(tmp_path, SETTINGS.format(url=database.url, kafka=kafka_url, topic=topic))
    relay.start()
    try:
        wanted = 1 if busy else 5
        eventually(lambda: database.statuses().get("PROCESSED", 0) >= wanted, within=30)
        began = time.monotonic()

        assert relay.stop() == 0, relay.log_tail()
    finally:
        relay.kill()

    assert time.monotonic() - began < 10
    assert database.claims() == 0
    statuses = database.statuses()
    assert "IN_PROCESS" not in statuses
    assert ("PENDING" in statuses) is busy


SLOW_HANDLER = """
import time
from outbox_publisher import Handlers

handlers = Handlers()


@handlers.on("order-created")
def handle(event):
    open("begun", "w").close()
    time.sleep(600)
"""
HANDLER_SETTINGS = """
outbox:
  database-url: {url}
  publisher:
    sender: {{type: handlers, bean-name: "slow:handlers"}}
    defaults: {{fixed-delay: 20ms}}
"""


@pytest.mark.slow
def test_a_second_sigterm_leaves_at_once_and_the_rows_stay_under_their_lease(
    postgresql_outbox: OutboxDatabase, tmp_path: Path
):
    # given a relay in the middle of a handler that takes ten minutes
    database = postgresql_outbox
    database.publish(3)
    (tmp_path / "slow.py").write_text(SLOW_HANDLER)
    relay = RelayProcess(tmp_path, HANDLER_SETTINGS.format(url=database.url))
    pid = relay.start()
    try:
        eventually((tmp_path / "begun").exists, within=30)

        # when it is told to stop, it waits for the handler
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: "finishing what is under way" in relay.log_tail())
        assert relay.running()

        # and when it is told again, it does not
        os.kill(pid, signal.SIGTERM)
        eventually(lambda: not relay.running())
        assert relay.stop() == -signal.SIGTERM, relay.log_tail()
    finally:
        relay.kill()

    # then another relay will find what it held, when the lease is over
    assert database.statuses() == {"IN_PROCESS": 3}
    assert database.claims() == 1


@pytest.mark.slow
def test_probes_tell_a_process_that_works_from_a_broker_that_is_away(
    postgresql_outbox: OutboxDatabase, own_server, tmp_path: Path
):
    # given a relay with pages for probes, and a broker of its own
    kafka = own_server("kafka", behind_proxy=True)
    settings = SETTINGS.format(url=postgresql_outbox.url, kafka=kafka.url, topic="orders")
    relay = RelayProcess(tmp_path, settings)
    address = f"127.0.0.1:{free_port()}"
    relay.start("--http", address)
    try:
        eventually(lambda: probe(address, "/readyz")[0] == 200, within=30)
        assert probe(address, "/livez") == (200, "ok\n")

        # when the broker goes away
        kafka.proxy.cut()

        # then the process is alive and not ready, and says why
        eventually(lambda: probe(address, "/readyz")[0] == 503, within=30)
        assert probe(address, "/readyz")[1].startswith("broker: ")
        assert probe(address, "/livez") == (200, "ok\n")

        # and ready again by itself
        kafka.proxy.heal()
        eventually(lambda: probe(address, "/readyz")[0] == 200, within=30)
        assert relay.stop() == 0, relay.log_tail()
    finally:
        relay.kill()


def probe(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except urllib.error.URLError:  # not there yet
        return 0, ""


@pytest.mark.slow
def test_a_database_that_goes_away_after_the_send_costs_no_second_send(own_server):
    # given a relay whose database is cut off at the moment when the broker has taken the batch
    server = own_server("postgresql", behind_proxy=True)
    engine = make_engine(server.url, "outbox-publisher")
    create_tables(engine, TableNames())
    database = OutboxDatabase(server.url, engine, store_for("postgresql", TableNames()))
    database.publish(50)
    sent = threading.Event()

    def cut_off(_event):
        if not sent.is_set():
            sent.set()
            server.proxy.cut()

    sender = MemorySender(answer=cut_off)
    relay = Relay(database.settings(defaults={"topic": "t", "fixed_delay": "20ms"}), sender=sender)
    thread = threading.Thread(target=relay.run)
    thread.start()
    try:
        assert sent.wait(20)

        # when the database comes back
        server.proxy.heal()

        # then the batch is settled as it was sent, and the relay goes on
        eventually(lambda: database.statuses() == {"PROCESSED": 50})
        database.publish(1)
        eventually(lambda: database.statuses() == {"PROCESSED": 51})
    finally:
        relay.stop()
        thread.join(20)
        engine.dispose()
    assert len(sender.sent) == 51
    assert not thread.is_alive()
