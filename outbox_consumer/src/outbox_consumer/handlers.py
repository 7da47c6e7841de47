"""How a handler wants to be called, decided from its signature before anything runs.

The session comes first and the message second, always. A handler that asks for neither is called with neither: its own database work
is then outside the transaction, and the log says so once. What could get the wrong argument is refused with the forms to write:
`consume(message, seen.append)` would otherwise append the session.

A sync consumer runs plain functions, an async one awaits. An async handler that nobody awaits has not run; a plain function in an async
consumer could only forget to await the session's methods, and its work would be lost with the event marked as consumed.
"""

import functools
import inspect
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kind:
    """Which handlers a call takes."""

    is_async: bool = False
    second: str = "message"

    @property
    def forms(self) -> str:
        start = "async def" if self.is_async else "def"
        return f"""write one of
    {start} handler(session, {self.second}): ...    # the usual form
    {start} handler(session): ...             # named session, s, db, conn, connection or tx, or annotated {self.session}
    {start} handler(): ...                    # its own database work is outside the transaction"""

    @property
    def session(self) -> str:
        return "AsyncSession" if self.is_async else "Session"


SYNC, SYNC_BATCH = Kind(), Kind(second="messages")
ASYNC, ASYNC_BATCH = Kind(is_async=True), Kind(is_async=True, second="messages")


class NotDone(TypeError):
    """The handler returned without having done its work: nothing was consumed, and no other message would fare better."""


_SESSION_NAMES = frozenset({"session", "s", "db", "conn", "connection", "tx"})
_SESSION_TYPE_NAMES = frozenset({"Session", "AsyncSession", "Connection", "AsyncConnection", "scoped_session"})
"""By name: SQLAlchemy's async classes cannot be imported without greenlet, and an annotation may be text."""

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BOTH = 2


def arguments_wanted(handler: Callable[..., Any], kind: Kind = SYNC) -> int:
    """How many of (session, message) to pass: 2, 1 or 0. TypeError, with the forms, for a handler that cannot be called so."""
    signature = checked_signature(handler, kind)
    parameters = list(signature.parameters.values())
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keyword_only:
        raise _refusal(
            handler, f"needs {', '.join(keyword_only)} as keyword, which nobody passes; give it a default, or", kind
        )
    required = [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
    if len(required) > _BOTH:
        raise _refusal(handler, f"needs {len(required)} arguments, and there are two to pass;", kind)
    if len(required) == 1 and not is_session(required[0]):
        raise _refusal(
            handler, f"has one parameter, {required[0].name!r}, and nothing says that it is the session;", kind
        )
    if len(required) == _BOTH and is_session(required[1]) and not is_session(required[0]):
        raise _refusal(handler, f"has {required[1].name!r} second, and the session comes first;", kind)
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return _BOTH
    return len(required)


def checked_signature(handler: Callable[..., Any], kind: Kind = SYNC) -> inspect.Signature:
    """The signature of something that can run inside the transaction; TypeError for what cannot."""
    if inspect.isclass(handler):
        raise _refusal(
            handler, "is a class, so calling it would only build an object; pass a function or a bound method:", kind
        )
    if not callable(handler):
        raise _refusal(handler, "cannot be called;", kind)
    (_refuse_plain if kind.is_async else _refuse_async)(handler, kind)
    try:
        return inspect.signature(handler)
    except (TypeError, ValueError):
        raise _refusal(
            handler, "does not tell its parameters (no signature); wrap it in a function of yours:", kind
        ) from None


def is_session(parameter: inspect.Parameter) -> bool:
    """Whether a parameter says, by name or annotation, that it is the session."""
    if parameter.name in _SESSION_NAMES:
        return True
    annotation = parameter.annotation
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    if isinstance(annotation, str):  # from __future__ import annotations
        return annotation.rpartition(".")[2].partition("[")[0].strip("\"' ") in _SESSION_TYPE_NAMES
    annotation = get_origin(annotation) or annotation
    return isinstance(annotation, type) and any(base.__name__ in _SESSION_TYPE_NAMES for base in annotation.__mro__)


def finished(handler: Callable[..., Any], result: Any) -> Any:
    """The handler's result, unless it only promises one: then its body has not run, and the event must not count as consumed."""
    if inspect.iscoroutine(result):
        result.close()  # else Python warns later, far from here, that it was never awaited
    elif not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return result
    raise NotDone(
        f"{name_of(handler)} returned a {type(result).__name__}, so its work has not been done: nothing was consumed. "
        "Do the work before you return; an iterator's items can be returned as a list"
    )


def promised(handler: Callable[..., Any], result: Any) -> Any:
    """What an async consumer may await: anything else was made by a plain function, which cannot have awaited its session."""
    if inspect.isawaitable(result):
        return result
    raise NotDone(
        f"{name_of(handler)} returned a {type(result).__name__}, and an async consumer awaits its handlers: nothing was consumed. "
        "Write async def handler(session, message), with await before the session's methods"
    )


def name_of(handler: object) -> str:
    """As a reader of the log would look for it."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    module, name = getattr(handler, "__module__", None), getattr(handler, "__qualname__", None)
    if isinstance(name, str):
        return f"{module}.{name}"
    return f"an instance of {type(handler).__module__}.{type(handler).__qualname__}"


class WarnOnce:
    """Says once per handler that it takes no session."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def without_session(self, handler: Callable[..., Any]) -> None:
        name = name_of(handler)
        with self._lock:
            if name in self._told:
                return
            self._told.add(name)
        log.warning(
            "%s takes no session: what it writes to a database is outside the transaction that marks the event as consumed, so a "
            "crash between the two does it again. Write def handler(session, message) to make both one",
            name,
        )


def _refuse_async(handler: Any, kind: Kind) -> None:
    """An async function or generator would be "called" without running a line of it."""
    for function in _behind(handler):
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise _refusal(
                handler,
                "is async, and this consumer is not: its body would never run. Use AsyncIdempotentConsumer, or without async",
                kind,
            )
        _refuse_generator(handler, function, kind)


def _refuse_plain(handler: Any, kind: Kind) -> None:
    """What may return something to await passes: a lambda, a partial, a callable object, a wrapper of an async function."""
    for function in _behind(handler):
        if inspect.isasyncgenfunction(function):
            raise _refusal(
                handler, "is an async generator (it has a yield): its body would never run. Without it,", kind
            )
        _refuse_generator(handler, function, kind)
    function = inspect.unwrap(_behind(handler)[0])
    function = getattr(function, "__func__", function)
    is_plain = inspect.isfunction(function) and function.__name__ != "<lambda>"
    if is_plain and not inspect.iscoroutinefunction(function):
        raise _refusal(
            handler,
            "is a plain function, and an async consumer awaits its handlers. For code that is sync, "
            "await session.run_sync(...) in an async one;",
            kind,
        )


def _refuse_generator(handler: Any, function: Any, kind: Kind) -> None:
    if inspect.isgeneratorfunction(function):
        raise _refusal(
            handler, "is a generator function (it has a yield): its body would never run. Without the yield,", kind
        )


def _behind(handler: Any) -> tuple[Any, Any]:
    """The function that a partial calls, and the one that an object is called by."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler, getattr(type(handler), "__call__", None)  # noqa: B004 - looked at, not tested for


def _refusal(handler: object, why: str, kind: Kind) -> TypeError:
    shown = f"{handler.__module__}.{handler.__qualname__}" if inspect.isclass(handler) else name_of(handler)
    return TypeError(f"{shown} {why} {kind.forms}")
