"""PostgreSQL's NOTIFY: the channel of an outbox, and how it is spoken to."""

import hashlib

from outbox_shared.tables import TableNames

_LONGEST = 63
"""Bytes of a name on PostgreSQL; it refuses a longer channel."""


def channel(names: TableNames) -> str:
    """One for each outbox of a database, the same for publishers and relays; ASCII, like the names it is made of."""
    table = names.of("events")
    found = table if names.schema is None else f"{names.schema}.{table}"
    if len(found) <= _LONGEST:
        return found
    digest = hashlib.sha256(found.encode()).hexdigest()[:16]
    return f"{found[: _LONGEST - 17]}.{digest}"


def notification(to: str, payload: str = "") -> str:
    """One statement, which is a transaction of its own.

    It need not wait for the disk: whoever is woken looks for rows whose own commit did. And the commits of those who notify follow each
    other, so that each should be short.
    """
    return f"SELECT set_config('synchronous_commit', 'off', true), pg_notify('{to}', '{payload}')"


def listening(to: str) -> str:
    return f'LISTEN "{to}"'
