"""Writers to be killed: processes that store orders and their events, and say on a pipe how far they are.

Started once, it reads one order of work per line from stdin and forks a writer for each: the imports are then paid for once and not
at every kill. On stdout stand the writer's process id and, as single bytes, what it has reached:

    w   both are written, and it waits for a byte from stdin
    c   the next call is COMMIT
    d   COMMIT has returned; it goes on with its next transaction
    x   the writer is dead and its parent has seen it

All of it goes through one pipe, so a `d` that the parent reads before the `x` was written by a commit that had returned.
"""

import json
import os
import sys
import traceback
from itertools import count
from typing import Any

from outbox_publisher.store import store_for
from outbox_shared.database import make_engine
from outbox_shared.tables import TableNames
from tests.fixtures import OutboxDatabase
from tests.publishing import open_shop

STDIN, STDOUT = 0, 1


def main() -> None:
    while line := read_line():
        if os.fork() == 0:
            work(**json.loads(line))
        os.wait()
        os.write(STDOUT, b"x")


def work(driver: str, url: str, rows: int, first: int) -> None:
    """One transaction of `rows` orders and as many events after the other, until somebody kills this process."""
    try:
        os.write(STDOUT, f"{os.getpid()}\n".encode())
        engine = make_engine(url, "writer")
        shop: Any = open_shop(driver, OutboxDatabase(url, engine, store_for(engine.dialect.name, TableNames())))
        engine.dispose()
        for transaction in count(first):
            ids = range(transaction * rows, (transaction + 1) * rows)
            with shop.begin():
                for number in ids:
                    shop.order(number)
                shop.publish_batch("order-created", [{"id": number} for number in ids], key=lambda order: order["id"])
                os.write(STDOUT, b"w")
                os.read(STDIN, 1)
                os.write(STDOUT, b"c")
            os.write(STDOUT, b"d")
    except BaseException:  # noqa: BLE001 - os._exit below would swallow its traceback
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(1)  # only a kill ends it well


def read_line() -> bytes:
    """Byte by byte: whatever follows belongs to the writer."""
    line = b""
    while (byte := os.read(STDIN, 1)) not in {b"\n", b""}:
        line += byte
    return line


if __name__ == "__main__":
    main()
