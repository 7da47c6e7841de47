"""A process to be killed or stopped: it works on one event under a guard, and says on stdout how far it is.

w   the work is under way, and it waits for a line on stdin
d   the guard has been left, and the event is marked
l   the guard said LeaseLost
"""

import os
import sys

from outbox_consumer import LeaseLost, RedisIdempotency


def main(url: str, prefix: str, lease: str, event_id: str) -> None:
    try:
        with RedisIdempotency(url, "billing", prefix=prefix, lease=lease).guard(event_id) as fresh:
            if fresh:
                os.write(1, b"w")
                os.read(0, 1)
    except LeaseLost:
        os.write(1, b"l")
    else:
        os.write(1, b"d")


if __name__ == "__main__":
    main(*sys.argv[1:])
