"""`@outbox.publishes(…)`: what a function returns becomes an event, in the transaction that the function was given.

The transaction must be open before the call and the same one after it: a function that commits by itself would leave its event outside
of its change.
"""

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from outbox_publisher.draft import EventDraft, check_options
from outbox_shared.errors import NoActiveTransaction, PublishError
from outbox_shared.transaction import open_transaction, same_transaction

P = ParamSpec("P")
R = TypeVar("R")


class Publishes(Protocol):
    """Outbox, or AsyncOutbox, whose methods are awaited."""

    def publish(self, transaction: Any, event: EventDraft, /) -> Any: ...
    def publish_batch(self, transaction: Any, events: list[EventDraft], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Publishing:
    """What the decorator was told."""

    event_type: str
    payload: str | Callable[..., Any] | None
    session: str | Callable[..., Any]
    many: bool
    options: Mapping[str, Any]

    def checked(self, function: Callable[..., Any], *, is_async: bool) -> inspect.Signature:
        """Every mistake that can be seen is a TypeError when the module is imported."""
        name = getattr(function, "__qualname__", type(function).__name__)
        if isinstance(function, staticmethod | classmethod):
            raise TypeError(f"@{type(function).__name__} goes above @outbox.publishes, not below it")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name} is a generator, which returns nothing to publish: return a list, with many=True")
        if inspect.iscoroutinefunction(function) != is_async:
            kind, other = ("a plain def", "Outbox") if is_async else ("async def", "AsyncOutbox")
            raise TypeError(f"{name} is {kind}: decorate it with {other}(settings).publishes")
        check_options(self.options)
        signature = inspect.signature(function)
        for parameter, what in ((self.session, "session"), (self.payload, "payload")):
            if isinstance(parameter, str) and parameter not in signature.parameters:
                raise TypeError(
                    f"{name} has no parameter {parameter!r}: name the one that holds the {what}, {what}='…', "
                    f"or pass a function, {what}=lambda …"
                )
        return signature

    def transaction(self, arguments: Mapping[str, Any]) -> Any:
        return arguments[self.session] if isinstance(self.session, str) else ask(self.session, arguments)

    def drafts(self, result: Any, arguments: Mapping[str, Any], name: str) -> list[EventDraft]:
        """The events of one call."""
        match self.payload:
            case None:
                payload = result
            case str():
                payload = arguments[self.payload]
            case function:
                payload = ask(function, arguments, result)
        if payload is None:
            raise PublishError(f"{name} gave None to publish: return the payload, or say what it is with payload=…")
        if not self.many:
            return [self._draft(payload, result, arguments)]
        if not isinstance(payload, list | tuple):
            raise PublishError(f"many=True publishes each item of a list, and {name} gave a {type(payload).__name__}")
        return [self._draft(item, item, arguments) for item in payload]

    def _draft(self, payload: Any, about: Any, arguments: Mapping[str, Any]) -> EventDraft:
        told = {
            name: ask(option, arguments, about) if callable(option) else option for name, option in self.options.items()
        }
        return EventDraft(self.event_type, payload, **told)


def publishing(plan: Publishing, outbox: Publishes) -> Callable[[Callable[P, R]], Callable[P, R]]:
    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature, name = plan.checked(function, is_async=False), function.__qualname__

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = _named(signature, args, kwargs)
            transaction = plan.transaction(arguments)
            before = _root(transaction, f"{name}(…)")
            result = function(*args, **kwargs)
            drafts = plan.drafts(result, arguments, name)
            _require_same(before, _root(transaction, f"{name}(…)", after=name), name)
            outbox.publish_batch(transaction, drafts) if plan.many else outbox.publish(transaction, drafts[0])
            return result

        return wrapper

    return decorate


def publishing_async(
    plan: Publishing, outbox: Publishes, sync_side: Callable[[Any], Any]
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Awaitable[R]]]:
    def decorate(function: Callable[P, Awaitable[R]]) -> Callable[P, Awaitable[R]]:
        signature, name = plan.checked(function, is_async=True), function.__qualname__

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = _named(signature, args, kwargs)
            transaction = plan.transaction(arguments)
            before = _root(sync_side(transaction), f"await {name}(…)")
            result = await function(*args, **kwargs)
            drafts = plan.drafts(result, arguments, name)
            _require_same(before, _root(sync_side(transaction), f"await {name}(…)", after=name), name)
            await (outbox.publish_batch(transaction, drafts) if plan.many else outbox.publish(transaction, drafts[0]))
            return result

        return wrapper

    return decorate


def ask(function: Callable[..., Any], arguments: Mapping[str, Any], *first: Any) -> Any:
    """Call `function` with `first`, and with those of the decorated function's arguments that it has parameters for."""
    parameters = list(inspect.signature(function).parameters.values())[len(first) :]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        taken = {p.name for p in list(inspect.signature(function).parameters.values())[: len(first)]}
        wanted = {name: value for name, value in arguments.items() if name not in taken}
    else:
        wanted = {p.name: arguments[p.name] for p in parameters if p.name in arguments}
    return function(*first, **wanted)


def _named(signature: inspect.Signature, args: Any, kwargs: Any) -> Mapping[str, Any]:
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


def _root(transaction: Any, call: str, after: str | None = None) -> object:
    try:
        return same_transaction(open_transaction(transaction, call=call, async_form="AsyncOutbox"))
    except NoActiveTransaction:
        if after is None:
            raise
        return None


def _require_same(before: object, after: object, name: str) -> None:
    if after is not before:
        raise NoActiveTransaction(
            f"{name} ended the transaction that it was given, so its event cannot be stored with its change: leave commit() and "
            "rollback() to the caller, who writes `with session.begin():` around the call"
        )
