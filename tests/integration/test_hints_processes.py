"""Hints and the life of processes: forks, short programs, databases that are away."""

import subprocess
import sys
import textwrap

import pytest

from tests.hints import listening

PROGRAM = """
    import os, sys, threading
    from sqlalchemy import create_engine
    from outbox_publisher import Outbox, PublisherSettings

    url = sys.argv[1]
    engine = create_engine(url)
    outbox = Outbox(PublisherSettings(database_url=url, defaults={"topic": "t"}))

    def publish():
        with engine.begin() as connection:
            outbox.publish(connection, "order-created", {})

    def notifiers():
        return sum(thread.name == "outbox-notifier" for thread in threading.enumerate())
"""


def run(url, body, *options):
    script = textwrap.dedent(PROGRAM) + textwrap.dedent(body)
    command = [sys.executable, *options, "-c", script, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_program_of_one_commit_is_heard_and_ends_without_a_word(postgresql_outbox):
    with listening(postgresql_outbox) as ear:
        done = run(postgresql_outbox.url, "publish()\nengine.dispose()", "-W", "error", "-X", "dev")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert ear.listen() == [1]

        done = run(postgresql_outbox.url, "publish()")  # which leaves its connections to the end of the process
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert ear.listen(2) == [1, 2]


def test_a_forked_child_tells_for_itself_and_leaves_the_parents_line_alone(postgresql_outbox):
    """
    The child begins anew; the parent's connection and thread go on as if nothing had happened, also when children come and go.
    """
    body = """
        publish()
        for _ in range(3):
            child = os.fork()
            if not child:
                engine.dispose(close=False)
                assert notifiers() == 0
                publish()
                assert notifiers() == 1
                engine.dispose()
                assert notifiers() == 0
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            before = [thread.ident for thread in threading.enumerate()]
            publish()
            assert [thread.ident for thread in threading.enumerate()] == before
        engine.dispose()
    """
    with listening(postgresql_outbox) as ear:
        done = run(postgresql_outbox.url, body, "-W", "error")
        assert (done.returncode, done.stderr) == (0, "")
        ear.drain()

    assert ear.heard[-1] == 7
    assert ear.heard == sorted(ear.heard)
    assert 4 <= len(ear.heard) <= 7  # three children and the parent


@pytest.mark.parametrize("times", [30])
def test_forks_in_the_middle_of_hints_never_hang(postgresql_outbox, times):
    body = f"""
        def keep_publishing():
            while not stop.is_set():
                outbox.wake()

        stop = threading.Event()
        busy = threading.Thread(target=keep_publishing)
        busy.start()
        for _ in range({times}):
            child = os.fork()
            if not child:
                outbox.wake()
                os._exit(0 if notifiers() == 1 else 1)
            assert os.waitpid(child, 0)[1] == 0
        stop.set()
        busy.join()
    """
    done = run(postgresql_outbox.url, body)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_ends_while_its_database_stands_still(own_server):
    server = own_server("postgresql")
    body = """
        outbox.wake()
        print("told", flush=True)
    """
    server.pause()
    try:
        done = run(server.url, body)
    finally:
        server.resume()
    assert (done.returncode, done.stdout, done.stderr) == (0, "told\n", "")
