"""One peer on servers of its own: `python -m benchmarks.peers txoutbox 20000`, or all of them without arguments."""

import json
import sys

from sqlalchemy.engine import make_url

from benchmarks.__main__ import servers
from benchmarks.peers import PROGRAMS, report
from tests.services.databases import postgresql_database
from tests.services.topics import Topics

# At its defaults faststream-outbox needs ten seconds for what others do in half a second.
EVENTS = {"txoutbox": 100_000, "faststream-outbox": 5_000}


def main(name: str | None = None, events: str | None = None) -> None:
    if name is not None and name not in PROGRAMS:
        sys.exit(f"no peer is called {name!r}; there are {', '.join(PROGRAMS)}")
    with servers() as bench:
        server, kafka = bench.url("postgresql"), bench.url("kafka")
        for peer in [name] if name else PROGRAMS:
            count = int(events) if events else EVENTS[peer]
            with postgresql_database(server) as url:
                dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
                print(peer, json.dumps(report(peer, dsn, kafka, Topics(kafka).create("peer", 4), count)))


if __name__ == "__main__":
    main(*sys.argv[1:3])
