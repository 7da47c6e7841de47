"""`status`, `cleanup`, `forget` and `doctor`."""

import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Annotated
from uuid import UUID

import typer

from outbox_consumer.doctor import Finding, examine
from outbox_consumer.operations import Operations, operations
from outbox_consumer.settings import ConsumerSettings, check_name
from outbox_consumer.status import Status
from outbox_consumer.store.upkeep import EXACT_UP_TO, Number
from outbox_shared.durations import format_duration, parse_duration
from outbox_shared.errors import ConfigurationError, OutboxError
from outbox_shared.text import age, as_json, table

NOT_ALL = 1
"""The exit code of `forget` where an id that was named had not been consumed."""
PROBLEMS = 1
"""The exit code of `doctor` where something does not work."""
PROGRESS = 2.0
"""Seconds between two lines of `cleanup`."""

AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]


def add_to(app: typer.Typer) -> None:
    for command in (status, cleanup, forget, doctor):
        app.command()(command)


def status(as_json: AsJson = False) -> None:
    """Who has consumed how much, what is older than its ttl, and who cleans up. Large tables are estimated, and it says so."""
    with operations(ConsumerSettings.load_for_cli()) as it:
        found = it.status()
    typer.echo(found.as_json() if as_json else "\n".join(lines(found)))


def cleanup(
    ttl: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="Instead of consumer.clean-up.ttl, such as 30d.", show_default=False),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Do not ask, where the ttl is shorter than the settings'.")
    ] = False,
) -> None:
    """Remove consumed rows that are older than their ttl, now and to the end. Consumers do the same by themselves.

    Waits up to a minute for another process that is cleaning.
    """
    settings = ConsumerSettings.load_for_cli()
    wanted = None if ttl is None else _ttl(ttl)
    if wanted is not None and wanted < settings.clean_up.ttl:
        kept = format_duration(settings.clean_up.ttl)
        _ask(
            f"messages that come again after {format_duration(wanted)} will run their handlers again ({kept} by the settings)",
            yes,
        )
    with operations(settings) as it:
        if (other := it.cleaner()) is not None:
            typer.echo(f"{other.holder} is cleaning up; waiting for its end", err=True)
        events, attempts = it.clean_up(wanted, _Progress())
    typer.echo(f"removed {events} consumed rows and {attempts} rows of failures that nobody came back for")


def forget(
    consumer: Annotated[str | None, typer.Argument(metavar="CONSUMER", help="Its name.", show_default=False)] = None,
    ids: Annotated[
        list[UUID] | None, typer.Argument(metavar="ID", help="Events to be consumed again.", show_default=False)
    ] = None,
    all_caches: Annotated[
        bool, typer.Option("--all-caches", help="Let every cache begin anew; the rows stay.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Forget that events were consumed: when their messages come again, the handler runs again. It does not make them come."""
    if all_caches == bool(consumer) or bool(consumer) != bool(ids):
        raise ConfigurationError("say what is to be forgotten: CONSUMER and the events' ids, or --all-caches")
    settings = ConsumerSettings.load_for_cli()
    with operations(settings) as it:
        if consumer is None or ids is None:
            _forget_caches(it, yes)
            return
        try:
            check_name(consumer)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        _ask(f"{consumer} will run its handler again for {_events(len(ids))}, when the messages come again", yes)
        forgotten = it.forget(consumer, ids)
    typer.echo(f"{_events(forgotten.count)} forgotten")
    for one in forgotten.others:
        typer.echo(f"{one} has not been consumed by {consumer}", err=True)
    if forgotten.others:
        raise typer.Exit(NOT_ALL)


def doctor(as_json_: AsJson = False) -> None:
    """Look whether this consumer can work: settings, database, tables, rights, clock, retention, Redis, clients. Changes nothing."""
    found = examine(ConsumerSettings.load_for_cli)
    typer.echo(as_json(found) if as_json_ else "\n".join(_findings(found)))
    if any(one.level == "problem" for one in found):
        raise typer.Exit(PROBLEMS)


def _forget_caches(it: Operations, yes: bool) -> None:
    _ask("every consumer of this database will ask it about each message until its cache is filled again", yes)
    it.forget_all_caches()
    typer.echo("a new epoch has begun: what caches knew is forgotten within seconds")


def _ask(what: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(f"{what}: say --yes if that is meant")
    typer.echo(what, err=True)
    if not typer.confirm("go on?", err=True):
        raise OutboxError("nothing was changed")


def _ttl(value: str) -> timedelta:
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ConfigurationError(f"--ttl: {error}") from None


class _Progress:
    """Hears of every batch, speaks now and then."""

    def __init__(self) -> None:
        self._gone, self._next = 0, time.monotonic() + PROGRESS

    def __call__(self, count: int) -> None:
        self._gone += count
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS
            typer.echo(f"{self._gone} rows so far", err=True)


# For people.


def lines(found: Status) -> Iterator[str]:
    """`status` for people."""
    yield f"schema        version {found.schema_version or 'unknown'}"
    yield f"consumed      {_ends(found)}"
    cleaning = f"after {format_duration(found.ttl)}" if found.cleanup_enabled else "off by the settings here"
    yield f"clean-up      {cleaning}, {_number(found.expired)} rows older than {format_duration(found.ttl)}"
    yield f"  {_cleaner(found)}"
    since = "" if found.oldest_attempt is None else f", since {age(found.now, found.oldest_attempt)}"
    yield f"failing       {_number(found.attempts)} messages{since}"
    yield ""
    if not found.consumers:
        yield "consumers: none"
        return
    rows = [
        [one.consumer, _number(one.rows), _ago(found, one.oldest), _ago(found, one.newest)] for one in found.consumers
    ]
    yield from table(["consumer", "rows", "oldest", "newest"], rows)
    if any(one.rows.kind != "exact" for one in found.consumers):
        yield f"(~ is the database's estimate, ≥ where it has none: more than {EXACT_UP_TO} rows are not counted)"


def _ends(found: Status) -> str:
    if found.oldest is None or found.newest is None:
        return "nothing"
    return f"oldest {age(found.now, found.oldest)} ago, newest {age(found.now, found.newest)} ago"


def _cleaner(found: Status) -> str:
    if found.cleaner is None:
        return "nobody is cleaning right now"
    doing = "is cleaning since" if found.cleaner.alive else "stopped in the middle, and was last seen"
    return (
        f"{found.cleaner.holder} {doing} {age(found.now, found.cleaner.since)}{'' if found.cleaner.alive else ' ago'}"
    )


def _ago(found: Status, then: datetime | None) -> str | None:
    return None if then is None else age(found.now, then)


def _number(number: Number) -> str:
    return {"exact": "", "estimate": "~", "at least": "≥"}[number.kind] + str(number.value)


def _events(count: int) -> str:
    return f"{count} {'event' if count == 1 else 'events'}"


def _findings(found: list[Finding]) -> Iterator[str]:
    for one in found:
        yield f"{one.level:<8} {one.subject:<10} {one.what}"
        if one.remedy:
            yield f"{'':<20}{one.remedy}"
