"""`make bench`: every measurement, or those that are named (`python -m benchmarks publish`), on servers of their own.

Variants are interleaved and repeated, and every run asserts its effects. Only ratios carry over to another machine.
"""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import cache, consumed_cleanup, endurance, idle, latency, publish, rabbitmq, relay, wakeup
from tests.services.bench import ON_DISK
from tests.services.client import BenchClient, new_socket_path

MEASUREMENTS = {
    "cache": cache.measure,
    "consumed-cleanup": consumed_cleanup.measure,
    "endurance": endurance.measure,
    "idle": idle.measure,
    "latency": latency.measure,
    "publish": publish.measure,
    "rabbitmq": rabbitmq.measure,
    "relay": relay.measure,
    "slow-acks": relay.measure_slow_acks,
    "databases": relay.measure_databases,
    "wakeup": wakeup.measure,
}


@contextmanager
def servers() -> Iterator[BenchClient]:
    """The bench of the tests, for this process alone."""
    path = new_socket_path(Path(tempfile.gettempdir()), f"outbox-bench-{os.getpid()}.socket")
    os.environ[ON_DISK] = "1"
    client = BenchClient(path, os.getpid(), os.dup(2))
    try:
        yield client
    finally:
        client.shutdown()


def main(wanted: list[str]) -> None:
    unknown = [name for name in wanted if name not in MEASUREMENTS]
    if unknown:
        sys.exit(f"no measurement is called {unknown[0]!r}; there are {', '.join(MEASUREMENTS)}")
    with servers() as bench:
        for name in wanted or MEASUREMENTS:
            MEASUREMENTS[name](bench)


if __name__ == "__main__":
    main(sys.argv[1:])
