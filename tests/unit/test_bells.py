"""A bell, who answers it, and how soon a woken relay looks again."""

import gc
import threading
import time

import pytest
from sqlalchemy.engine import make_url

from outbox_publisher.hints import Bell, answer, ring
from outbox_publisher.hints.pace import QUIET, Pace
from outbox_publisher.relay.wakeup import AGAIN, Alert
from outbox_shared.clock import SystemClock
from outbox_shared.places import place_of
from outbox_shared.tables import TableNames


def never():
    return False


def test_a_bell_rings_once_however_often_it_was_rung():
    bell = Bell()
    assert not bell.heard(0)
    bell.ring()
    bell.ring()
    assert bell.heard(0)
    assert not bell.heard(0)


def test_a_ring_ends_the_wait_at_once():
    bell = Bell()
    threading.Timer(0.05, bell.ring).start()
    began = time.monotonic()

    assert bell.wait(SystemClock(), 60, never)

    assert time.monotonic() - began < 30


def test_a_wait_without_a_ring_is_as_long_as_was_asked():
    bell = Bell()
    for seconds in (0, 0.03, 0.25):
        began = time.monotonic()
        assert not bell.wait(SystemClock(), seconds, never)
        assert time.monotonic() - began >= seconds


def test_it_notices_that_it_is_time_to_stop():
    flag = threading.Event()
    threading.Timer(0.05, flag.set).start()
    assert not Bell().wait(SystemClock(), 60, flag.is_set)
    assert not Bell().wait(SystemClock(), 60, lambda: True)


def test_a_bell_may_be_rung_in_the_middle_of_ringing():
    """By the garbage collector, say, which gives back a connection that somebody forgot."""
    bell = Bell()

    class Forgotten:
        def __del__(self):
            bell.ring()

    for _ in range(1000):
        one = Forgotten()
        one.me = one
        del one
        bell.ring()
        gc.collect(0)
    assert bell.heard(0)


def test_only_who_answers_at_that_address_is_told():
    here, there = ((place_of(make_url(url)), TableNames()) for url in ("postgresql://db/shop", "postgresql://db/other"))
    told = []
    with answer(here, lambda: told.append(1)), answer(here, lambda: told.append(2)):
        ring(here)
        ring(there)
        ring((here[0], TableNames(prefix="other_")))
        assert told == [1, 2]
    ring(here)
    assert told == [1, 2]


def test_a_place_is_the_same_however_it_is_written(tmp_path, monkeypatch):
    same = [
        ["postgresql+psycopg://u@localhost/shop", "postgresql+asyncpg://me:secret@127.0.0.1:5432/shop", "postgresql:///shop",
         "postgresql:///shop?host=/var/run/postgresql", "postgresql:///shop?host=localhost&port=5432"],
        ["mysql+pymysql://root@db/shop", "mariadb+asyncmy://db:3306/shop"],
        [f"sqlite:///{tmp_path}/a.db", "sqlite+aiosqlite:///a.db", "sqlite:///./a.db", "sqlite:///file:a.db?uri=true"],
        ["sqlite://", "sqlite:///:memory:"],
    ]  # fmt: skip
    monkeypatch.chdir(tmp_path)
    places = [{place_of(make_url(url)) for url in urls} for urls in same]

    assert [len(found) for found in places] == [1, 1, 1, 1]
    assert len(set.union(*places)) == 4
    assert place_of(make_url("postgresql://db:6432/shop")) != place_of(make_url("postgresql://db/shop"))


def test_a_woken_relay_that_finds_nothing_looks_again_four_times():
    pauses, alert = [], Alert.rung()
    for _ in range(6):
        seconds, alert = alert.after_look(0.5, found=False)
        pauses.append(seconds)

    assert pauses == [*AGAIN, 0.5, 0.5] == [0.005, 0.01, 0.02, 0.04, 0.5, 0.5]


def test_one_that_found_something_is_at_ease():
    seconds, alert = Alert.rung().after_look(0.5, found=True)
    assert (seconds, alert) == (0.5, Alert())
    assert Alert.rung().after_look(0.0, found=False)[0] == 0.0  # never longer than it would have been


def test_hints_are_ten_milliseconds_apart_and_fifty_a_second_when_they_go_on():
    pace, now, told = Pace(), 1000.0, []
    while now < 1010.0:
        told.append(now)
        now += pace.after(now)

    assert told[1] - told[0] == pytest.approx(QUIET)
    in_the_first_tenth = sum(moment < 1000.1 for moment in told)
    in_the_last_second = sum(moment >= 1009.0 for moment in told)
    assert 10 <= in_the_first_tenth <= 11
    assert 49 <= in_the_last_second <= 51


def test_a_pause_saves_up_for_another_burst():
    pace, now = Pace(), 1000.0
    for _ in range(200):
        now += pace.after(now)
    assert pace.after(now) > QUIET
    assert pace.after(now + 1.0) == QUIET
