"""`@consumer.idempotent`: a function that looks like the broker client's callback outside and gets a session inside.

The parameter named `session` is filled here and hidden from `inspect.signature`: frameworks that fill parameters by name would try to
fill it too. The message is the parameter of that name, else the first argument that carries an event id.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from sqlalchemy.orm import Session

from outbox_consumer.handlers import checked_signature, finished, name_of
from outbox_consumer.identify import find_message
from outbox_consumer.outcome import Outcome

R = TypeVar("R")


class Run(Protocol):
    """Runs a piece of work once per event of this message, in one transaction with the mark."""

    def __call__(self, message: object, work: Callable[[Session], R], /) -> Outcome[R]: ...


def make_idempotent(
    function: Callable[..., R], run: Run, *, session: str, message: str | None
) -> Callable[..., R | None]:
    """Wrap `function`; every mistake in its signature is a TypeError here, when the module is imported."""
    if isinstance(function, staticmethod | classmethod):
        kind = type(function).__name__
        raise TypeError(f"@{kind} goes above @idempotent, not below it")
    inner = checked_signature(function)
    _require(function, inner, session, "session")
    if message is not None:
        _require(function, inner, message, "message")
    outer = inner.replace(parameters=[p for p in inner.parameters.values() if p.name != session])
    message_name = "message" if message is None else message

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> R | None:
        bound = outer.bind(*args, **kwargs)
        delivered = bound.arguments.get(message_name)
        if delivered is None:
            delivered = find_message(_values(bound))
        if delivered is None:
            raise TypeError(
                f"no argument of {name_of(function)} is a message with headers. Name the parameter `message`, or write "
                '@consumer.idempotent(message="record")'
            )

        def work(own: Session) -> R:
            filled = inspect.BoundArguments(inner, {**bound.arguments, session: own})
            result: R = finished(function, function(*filled.args, **filled.kwargs))
            return result

        return run(delivered, work).result

    wrapper.__signature__ = outer  # type: ignore[attr-defined]
    wrapper.__annotations__ = {name: kind for name, kind in wrapper.__annotations__.items() if name != session}
    return wrapper


def _require(function: Callable[..., Any], signature: inspect.Signature, name: str, what: str) -> None:
    parameter = signature.parameters.get(name)
    if parameter is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(
            f"{name_of(function)} has no parameter {name!r} for the {what}. Write def {function.__name__}(session, message), "
            'or name them: @consumer.idempotent(session="db", message="record")'
        )


def _values(bound: inspect.BoundArguments) -> Iterator[object]:
    """Every argument that the caller passed, in order."""
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_POSITIONAL:
            yield from value
        elif kind is inspect.Parameter.VAR_KEYWORD:
            yield from value.values()
        else:
            yield value
