"""`status`, `pause`, `resume`, `cleanup` and `recover`."""

from collections.abc import Iterator
from typing import Annotated

import typer

from outbox_publisher.operations import operations
from outbox_publisher.settings import PublisherSettings
from outbox_publisher.status import Status
from outbox_publisher.store import Count
from outbox_shared.text import age, table

STATUSES = ("PENDING", "IN_PROCESS", "PROCESSED", "FAILED")
DLQ_STATUSES = ("MOVED", "TO_RETRY", "RESOLVED")

OfType = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Only this event type.", show_default=False)]
OfTopic = Annotated[
    str | None, typer.Option("--topic", metavar="TOPIC", help="Only what goes to this topic.", show_default=False)
]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


def add_to(app: typer.Typer) -> None:
    for command in (status, pause, resume, cleanup, recover):
        app.command()(command)


def status(as_json: AsJson = False) -> None:
    """Who relays, what is paused, what waits, and what failed."""
    with operations(PublisherSettings.load_for_cli()) as it:
        found = it.status()
    typer.echo(found.as_json() if as_json else "\n".join(lines(found)))


def pause(event_type: OfType = None, topic: OfTopic = None) -> None:
    """Send nothing (of a type, or to a topic) until it is resumed. Events are still stored; relays obey within a second."""
    with operations(PublisherSettings.load_for_cli()) as it:
        it.pause(event_type, topic)
        typer.echo(_paused(it.status().paused))


def resume(event_type: OfType = None, topic: OfTopic = None) -> None:
    """End a pause: the one that `pause` with the same options began."""
    with operations(PublisherSettings.load_for_cli()) as it:
        if not it.resume(event_type, topic):
            typer.echo("that was not paused", err=True)
        typer.echo(_paused(it.status().paused))


def cleanup() -> None:
    """Remove delivered events and resolved dead letters that are older than their ttl, now. Relays do the same by themselves."""
    with operations(PublisherSettings.load_for_cli()) as it:
        events, letters = it.clean_up()
    typer.echo(f"removed {events} delivered events and {letters} resolved dead letters")


def recover() -> None:
    """Give back what relays held when they died and whose lease is over, now. Relays do the same by themselves."""
    with operations(PublisherSettings.load_for_cli()) as it:
        rows = it.recover()
    typer.echo(f"{rows} events are free again")


def lines(found: Status) -> Iterator[str]:
    """`status` for people."""
    alive = [relay for relay in found.relays if relay.alive]
    silent = [relay for relay in found.relays if not relay.alive]
    yield f"relays        {len(alive)} alive{f', {len(silent)} silent' if silent else ''}"
    for relay in [*alive, *silent]:
        yield f"  {relay.name}  {'seen' if relay.alive else 'silent for'} {age(found.now, relay.seen_at)}{' ago' if relay.alive else ''}"
    yield _paused(found.paused)
    yield ""
    yield from _counts("events", STATUSES, found.events, found)
    yield ""
    yield from _counts("dead letters", DLQ_STATUSES, found.dead_letters, found)


def _counts(title: str, statuses: tuple[str, ...], counts: list[Count], found: Status) -> Iterator[str]:
    if not counts:
        yield f"{title}: none"
        return
    by_type: dict[str, dict[str, Count]] = {}
    for one in counts:
        by_type.setdefault(one.event_type, {})[one.status] = one
    rows = [
        [event_type, *(of[status].count if status in of else None for status in statuses), _oldest(of, found)]
        for event_type, of in sorted(by_type.items())
    ]
    yield from table([title, *statuses, "oldest open"], rows)


def _oldest(of: dict[str, Count], found: Status) -> str | None:
    """Of those that still wait for somebody."""
    open_ = [one.oldest for status, one in of.items() if status not in {"PROCESSED", "RESOLVED"}]
    return age(found.now, min(open_)) if open_ else None


def _paused(names: list[str]) -> str:
    said = ["everything" if name == "*" else name.replace(":", " ", 1) for name in names]
    return f"paused        {', '.join(said) or 'nothing'}"
