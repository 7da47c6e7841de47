"""`@consumer.idempotent`: a function that looks like the broker client's callback outside and gets a session inside.

The parameter named `session` is filled here and hidden from `inspect.signature`: frameworks that fill parameters by name would try to
fill it too. The message is the parameter of that name, else the first argument that carries an event id.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from sqlalchemy.orm import Session

from outbox_consumer.handlers import ASYNC, SYNC, Kind, checked_signature, finished, name_of
from outbox_consumer.identify import find_message
from outbox_consumer.outcome import Outcome

R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Run(Protocol):
    """Runs a piece of work once per event of this message, in one transaction with the mark."""

    def __call__(self, message: object, work: Callable[[Session], R], /) -> Outcome[R]: ...


class RunAsync(Protocol):
    """The same, awaited."""

    def __call__(self, message: object, work: Callable[[Any], R], /) -> Coroutine[Any, Any, Outcome[R]]: ...


class Awaited(Protocol):
    """What becomes of the function's promise, inside of `work`."""

    def __call__(self, function: Callable[..., Awaitable[R]], promise: Awaitable[R], /) -> R: ...


def make_idempotent(
    function: Callable[..., R], run: Run, *, session: str, message: str | None
) -> Callable[..., R | None]:
    """Wrap `function`; every mistake in its signature is a TypeError here, when the module is imported."""
    call = _Decorated(function, SYNC, session, message)

    def wrapper(*args: Any, **kwargs: Any) -> R | None:
        delivered, with_session = call.bind(args, kwargs)

        def work(own: Session) -> R:
            result: R = finished(function, with_session(own))
            return result

        return run(delivered, work).result

    return call.dressed(wrapper)


def make_idempotent_async(
    function: Callable[..., Awaitable[R]], run: RunAsync, awaited: Awaited, *, session: str, message: str | None
) -> Callable[..., Coroutine[Any, Any, R | None]]:
    """Wrap an async function."""
    call = _Decorated(function, ASYNC, session, message)

    async def wrapper(*args: Any, **kwargs: Any) -> R | None:
        delivered, with_session = call.bind(args, kwargs)
        outcome = await run(delivered, lambda own: awaited(function, with_session(own)))
        return outcome.result

    return call.dressed(wrapper)


class _Decorated:
    """One function, and where its session and its message are among its parameters."""

    def __init__(self, function: Callable[..., Any], kind: Kind, session: str, message: str | None) -> None:
        if isinstance(function, staticmethod | classmethod):
            raise TypeError(f"@{type(function).__name__} goes above @idempotent, not below it")
        self._inner = checked_signature(function, kind)
        self._function, self._session = function, session
        _require(function, self._inner, kind, session, "session")
        if message is not None:
            _require(function, self._inner, kind, message, "message")
        self._message = "message" if message is None else message
        self._outer = self._inner.replace(parameters=[p for p in self._inner.parameters.values() if p.name != session])

    def bind(self, args: Any, kwargs: Any) -> tuple[object, Callable[[Any], Any]]:
        """The message among the caller's arguments, and the call that still needs a session."""
        bound = self._outer.bind(*args, **kwargs)
        delivered = bound.arguments.get(self._message)
        if delivered is None:
            delivered = find_message(_values(bound))
        if delivered is None:
            raise TypeError(
                f"no argument of {name_of(self._function)} is a message with headers. Name the parameter `message`, or write "
                '@consumer.idempotent(message="record")'
            )

        def with_session(session: Any) -> Any:
            filled = inspect.BoundArguments(self._inner, {**bound.arguments, self._session: session})
            return self._function(*filled.args, **filled.kwargs)

        return delivered, with_session

    def dressed(self, wrapper: F) -> F:
        """What the caller sees: the function without its session."""
        functools.update_wrapper(wrapper, self._function)
        wrapper.__signature__ = self._outer  # type: ignore[attr-defined]
        wrapper.__annotations__ = {n: kind for n, kind in wrapper.__annotations__.items() if n != self._session}
        return wrapper


def _require(function: Callable[..., Any], signature: inspect.Signature, kind: Kind, name: str, what: str) -> None:
    parameter = signature.parameters.get(name)
    if parameter is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        start = "async def" if kind.is_async else "def"
        raise TypeError(
            f"{name_of(function)} has no parameter {name!r} for the {what}. Write {start} {function.__name__}(session, message), "
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
