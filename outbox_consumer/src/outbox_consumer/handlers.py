"""How a handler wants to be called, decided from its signature before anything runs.

The session comes first and the message second, always. A handler that asks for neither is called with neither: its own database work
is then outside the transaction, and the log says so once. What could get the wrong argument is refused with the forms to write:
`consume(message, seen.append)` would otherwise append the session.
"""

import functools
import inspect
import logging
import threading
from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, scoped_session

log = logging.getLogger(__name__)

FORMS = """write one of
    def handler(session, message): ...    # the usual form
    def handler(session): ...             # named session, s, db, conn, connection or tx, or annotated Session
    def handler(): ...                    # its own database work is outside the transaction"""

_SESSION_NAMES = frozenset({"session", "s", "db", "conn", "connection", "tx"})
_SESSION_TYPES = (Session, scoped_session, Connection)
_SESSION_TYPE_NAMES = frozenset({"Session", "AsyncSession", "Connection", "AsyncConnection", "scoped_session"})
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BOTH = 2


def arguments_wanted(handler: Callable[..., Any]) -> int:
    """How many of (session, message) to pass: 2, 1 or 0. TypeError, with the forms, for a handler that cannot be called so."""
    signature = checked_signature(handler)
    parameters = list(signature.parameters.values())
    keyword_only = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if keyword_only:
        raise _refusal(
            handler, f"needs {', '.join(keyword_only)} as keyword, which nobody passes; give it a default, or"
        )
    required = [p for p in parameters if p.kind in _POSITIONAL and p.default is p.empty]
    if len(required) > _BOTH:
        raise _refusal(handler, f"needs {len(required)} arguments, and there are two to pass;")
    if len(required) == 1 and not is_session(required[0]):
        raise _refusal(handler, f"has one parameter, {required[0].name!r}, and nothing says that it is the session;")
    if len(required) == _BOTH and is_session(required[1]) and not is_session(required[0]):
        raise _refusal(handler, f"has {required[1].name!r} second, and the session comes first;")
    if any(p.kind is p.VAR_POSITIONAL for p in parameters):
        return _BOTH
    return len(required)


def checked_signature(handler: Callable[..., Any]) -> inspect.Signature:
    """The signature of something that can run inside a sync transaction; TypeError for what cannot."""
    if inspect.isclass(handler):
        raise _refusal(
            handler, "is a class, so calling it would only build an object; pass a function or a bound method:"
        )
    if not callable(handler):
        raise _refusal(handler, "cannot be called;")
    _refuse_deferred(handler)
    try:
        return inspect.signature(handler)
    except (TypeError, ValueError):
        raise _refusal(
            handler, "does not tell its parameters (no signature); wrap it in a function of yours:"
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
    return isinstance(annotation, type) and (
        issubclass(annotation, _SESSION_TYPES) or annotation.__name__ in _SESSION_TYPE_NAMES
    )


def finished(handler: Callable[..., Any], result: Any) -> Any:
    """The handler's result, unless it only promises one: then its body has not run, and the event must not count as consumed."""
    if inspect.iscoroutine(result):
        result.close()  # else Python warns later, far from here, that it was never awaited
    elif not (inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result)):
        return result
    raise TypeError(
        f"{name_of(handler)} returned a {type(result).__name__}, so its work has not been done: nothing was consumed. "
        "Do the work before you return; an iterator's items can be returned as a list"
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


def _refuse_deferred(handler: Any) -> None:
    """An async function or generator would be "called" without running a line of it."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    for function in (handler, getattr(type(handler), "__call__", None)):  # noqa: B004 - looked at, not tested for
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise _refusal(handler, "is async, and this consumer is not: its body would never run. Without async,")
        if inspect.isgeneratorfunction(function):
            raise _refusal(
                handler, "is a generator function (it has a yield): its body would never run. Without the yield,"
            )


def _refusal(handler: object, why: str) -> TypeError:
    shown = f"{handler.__module__}.{handler.__qualname__}" if inspect.isclass(handler) else name_of(handler)
    return TypeError(f"{shown} {why} {FORMS}")
