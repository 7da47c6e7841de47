"""Listening for hints, as a relay does, and looking at what their senders leave behind."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import psycopg
from sqlalchemy.engine import make_url

from outbox_publisher.store import channel_for
from tests.consuming import eventually
from tests.fixtures import NAMES, OutboxDatabase


class Ear:
    """Hears a database's hints, and counts the events that are visible at that moment."""

    def __init__(self, connection: psycopg.Connection, url: str) -> None:
        self._connection, self._url = connection, url
        self.heard: list[int] = []
        self._ended = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._listen)

    def _listen(self) -> None:
        """On a thread of its own, so that what is visible is seen at the moment of the hint."""
        with psycopg.connect(self._url, autocommit=True) as eye:
            while not self._stopping.is_set():
                for notify in self._connection.notifies(timeout=0.1):  # to its end: whoever leaves it early loses some
                    if notify.payload:
                        self._ended += 1
                    else:
                        row = eye.execute("SELECT count(*) FROM outbox_events").fetchone()
                        self.heard.append(row[0] if row else -1)

    def listen(self, at_least: int = 1) -> list[int]:
        """Wait until so many hints have been heard since the beginning; how many events were visible with each."""
        eventually(lambda: len(self.heard) >= at_least)
        return self.heard

    def drain(self) -> list[int]:
        """What comes until a hint of our own has come back: everything that was told before."""
        before = self._ended
        with psycopg.connect(self._url, autocommit=True) as mouth:
            mouth.execute("SELECT pg_notify(%s, 'the end')", [CHANNEL])
        eventually(lambda: self._ended > before)
        return self.heard

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


CHANNEL = channel_for("postgresql", NAMES) or ""


@contextmanager
def listening(database: OutboxDatabase) -> Iterator[Ear]:
    url = libpq(database.url)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'LISTEN "{CHANNEL}"')
        with Ear(connection, url) as ear:
            yield ear


def libpq(url: str) -> str:
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def notifiers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "outbox-notifier"]
