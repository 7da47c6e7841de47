"""Consumers to be killed: processes that consume one message after the other, and say on a pipe how far they are.

Started once, it reads one order of work per line from stdin and forks a consumer for each, as writer.py does. On stdout stand the
consumer's process id and, as single bytes, what it has reached; at those of `stands` it waits for a byte from stdin, and says `g` when it
has it:

    h   the handler is called: the mark is inserted, nothing else
    e   the handler has done its work and is about to return
    r   COMMIT has returned, and the cache is about to be told
    d   consume has returned, and the message is not acknowledged yet
    a   it is acknowledged
    x   the consumer is dead and its parent has seen it
"""

import json
import os
import sys
import traceback
from typing import Any
from uuid import UUID

from sqlalchemy import create_engine

from tests.consuming import ConsumingDatabase, FakeCache, a_message, book
from tests.failure.writer import STDIN, STDOUT, read_line


def main() -> None:
    while line := read_line():
        if os.fork() == 0:
            work(**json.loads(line))
        os.wait()
        os.write(STDOUT, b"x")


def work(driver: str, url: str, events: list[str], stands: str) -> None:
    def reach(border: bytes) -> None:
        os.write(STDOUT, border)
        if border.decode() in stands:
            os.read(STDIN, 1)
            os.write(STDOUT, b"g")

    try:
        os.write(STDOUT, f"{os.getpid()}\n".encode())
        cache = FakeCache()
        cache.before_remembering = lambda: reach(b"r")
        consumer = ConsumingDatabase(url, create_engine(url), driver).consumer(cache=cache, clean_up={"enabled": False})

        def handler(session: Any, message: Any) -> None:
            reach(b"h")
            book(session, message)
            reach(b"e")

        for event_id in events:
            consumer.consume(a_message(UUID(event_id)), handler)
            reach(b"d")
            reach(b"a")
    except BaseException:  # noqa: BLE001 - os._exit below would swallow its traceback
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)  # only a kill ends it well


if __name__ == "__main__":
    main()
