"""Several relay processes on one backlog and a real Kafka: each event is claimed by one of them and sent once, and all of them work."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from outbox_publisher.demo.embedded_kafka import read_topic
from outbox_publisher.demo.relay_process import RelayProcess
from outbox_publisher.operations import Operations
from tests.fixtures import OutboxDatabase
from tests.relay_ledger import Change, Ledger
from tests.services.processes import wait_until

# Nobody dies here and the broker is well: with times that even a busy machine keeps, a second claim of an event has no excuse.
# Recovery comes often, as it is the one that could take a claim away while its lease lives.
SETTINGS = """
outbox:
  database-url: {url}
  publisher:
    lease: 60s
    stuck-recovery: {{fixed-delay: 200ms}}
    sender: {{type: kafka, publish-timeout: 30s, kafka: {{bootstrap-servers: "{kafka}"}}}}
    defaults: {{topic: {topic}, batch-size: {batch}, fixed-delay: 20ms}}
"""
STARTED, DRAINED = 120.0, 300.0
"""Seconds: eight interpreters start on two busy cores, and then share them."""


FEW, MANY = (6_000, 20), (20_000, 100)
"""Events, and how many of them a batch has."""
RUNS = [
    ("postgresql", 2, 0.05, *FEW),
    ("mariadb", 4, 0.05, *FEW),
    ("sqlite", 2, 0.0, *FEW),
    *(
        pytest.param(*run, *MANY, marks=pytest.mark.full)
        for run in [
            ("postgresql", 2, 0.05),
            ("postgresql", 4, 0.05),
            ("postgresql", 8, 0.02),
            ("mariadb", 2, 0.05),
            ("mariadb", 4, 0.05),
            ("mariadb", 8, 0.02),
            ("sqlite", 2, 0.0),  # one writer at a time, and nobody says who is next
        ]
    ),
]


@contextmanager
def relay_processes(folder: Path, settings: str, count: int) -> Iterator[dict[int, RelayProcess]]:
    """`count` of them, by process id; none is left at the end, and all their logs are told if something went wrong."""
    relays: dict[int, RelayProcess] = {}
    try:
        for number in range(count):
            (own := folder / f"relay-{number}").mkdir()
            relay = RelayProcess(own, settings)
            relays[relay.start()] = relay
        yield relays
    except BaseException:
        print(*(f"relay {pid}:\n{relay.log_tail()}" for pid, relay in relays.items()), sep="\n")
        raise
    finally:
        for relay in relays.values():
            relay.kill()


def is_claimed_and_delivered_once(story: list[Change]) -> bool:
    token = story[0].new_token
    return token is not None and story == [
        Change("PENDING", "IN_PROCESS", None, token),
        Change("IN_PROCESS", "PROCESSED", token, None),
    ]


def arrived(kafka_url: str, topic: str) -> Counter[UUID]:
    messages = read_topic(kafka_url, topic)
    return Counter(UUID(dict(message.headers())["outbox_event_id"].decode()) for message in messages)


def told(counts: Sequence[int], events: int) -> str:
    return " ".join(f"{count / events:.1%}" for count in sorted(counts))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("kind", "relays", "least", "count", "batch"), RUNS)
def test_relay_processes_share_a_backlog_and_send_every_event_once(
    request: pytest.FixtureRequest, kafka_url: str, kafka_topic, tmp_path: Path, kind, relays, least, count, batch
):
    # given a backlog, and relays that stand behind a barrier: they live, and everything is paused
    database: OutboxDatabase = request.getfixturevalue(f"{kind}_outbox")
    topic = kafka_topic(partitions=4)
    ids = database.publish(count, topic=topic)
    ledger = Ledger(database)
    operations = Operations(database.settings(), database.engine)
    operations.pause()
    settings = SETTINGS.format(url=database.url, kafka=kafka_url, topic=topic, batch=batch)

    with relay_processes(tmp_path, settings, relays) as processes:

        def work() -> bool:
            return all(process.running() for process in processes.values())

        def heard_of() -> dict[str, int | None]:
            return {relay.name: relay.pid for relay in operations.status().relays if relay.alive}

        def are_ready() -> bool:
            return not work() or sorted(heard_of().values()) == sorted(processes)

        assert wait_until(are_ready, STARTED, pause=0.1)
        assert work()
        names = heard_of()
        assert database.statuses() == {"PENDING": count}
        assert ledger.claims() == {}

        # when it opens for all of them with one commit
        began = time.monotonic()
        assert operations.resume()

        # then they relay everything, and each ends well when it is told to
        assert wait_until(lambda: not work() or database.statuses() == {"PROCESSED": count}, DRAINED, pause=0.2)
        took = time.monotonic() - began
        assert work()
        assert {pid: process.stop() for pid, process in processes.items()} == dict.fromkeys(processes, 0)

    # and no event was claimed twice, by the database's own account
    stories = ledger.stories()
    assert stories.keys() == set(ids)
    assert [story for story in stories.values() if not is_claimed_and_delivered_once(story)] == []
    assert set(map(tuple, ledger.claims().values())) == {("opened", "ended")}

    # and each is in the broker, once; nothing was charged or left behind
    assert arrived(kafka_url, topic) == Counter(ids)
    assert database.statuses() == {"PROCESSED": count}
    assert {(row.attempts, row.lost_claims, row.maybe_sent) for row in database.events()} == {(0, 0, False)}
    assert database.claims() == 0

    # and every process has done its share
    claimants = ledger.claimants()
    settled = Counter(dict.fromkeys(names, 0))
    settled.update(claimants[story[0].new_token] for story in stories.values())
    assert settled.keys() == names.keys()
    assert min(settled.values()) >= least * count, told(settled.values(), count)
    print(f"\n{kind}: {relays} relays, {count} events in {took:.1f} s, shares {told(settled.values(), count)}")
