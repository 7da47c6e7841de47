"""Senders that other distributions bring along, as entry points of the group `outbox_publisher.senders`."""

from importlib.metadata import EntryPoint, entry_points

GROUP = "outbox_publisher.senders"


def installed_senders() -> dict[str, list[EntryPoint]]:
    """By name; more than one where two distributions use the same."""
    found: dict[str, list[EntryPoint]] = {}
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        found.setdefault(entry.name, []).append(entry)
    return found
