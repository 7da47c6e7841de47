"""`@outbox.publishes(…)`: what a function returns becomes an event, in the transaction that the function was given.

The transaction must be open before the call and the same one after it: a function that commits by itself would leave its event outside
of its change. Everything that can be seen in the function's signature is looked at once, when it is decorated.
"""

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeAlias, TypeVar

from outbox_publisher.draft import ONE_ID_FOR_MANY, EventDraft, check_options
from outbox_shared.adapters import Call
from outbox_shared.errors import NoActiveTransaction, PublishError
from outbox_shared.transaction import identity_of, open_transaction

P = ParamSpec("P")
R = TypeVar("R")

Arguments: TypeAlias = Mapping[str, Any]


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

    def of(self, function: Callable[..., Any], *, is_async: bool) -> "Plan":
        """The plan for one function; every mistake that can be seen is a TypeError when the module is imported."""
        name = getattr(function, "__qualname__", None) or repr(function)
        if isinstance(function, staticmethod | classmethod):
            raise TypeError(f"@{type(function).__name__} goes above @outbox.publishes, not below it")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"{name} is a generator, which returns nothing to publish: return a list, with many=True")
        if inspect.iscoroutinefunction(function) != is_async:
            kind, other = ("a plain def", "Outbox") if is_async else ("async def", "AsyncOutbox")
            raise TypeError(f"{name} is {kind}: decorate it with {other}(settings).publishes")
        signature = inspect.signature(function)
        self._check_names(name, signature)
        return Plan(self, name, signature, Call(f"{name}(…)", "AsyncOutbox", is_async))

    def _check_names(self, name: str, signature: inspect.Signature) -> None:
        check_options(self.options)
        for parameter, what in ((self.session, "session"), (self.payload, "payload")):
            if isinstance(parameter, str) and parameter not in signature.parameters:
                raise TypeError(
                    f"{name} has no parameter {parameter!r}: name the one that holds the {what}, {what}='…', "
                    f"or pass a function, {what}=lambda …"
                )
        for option, value in self.options.items():
            if isinstance(value, str) and value in signature.parameters:
                raise TypeError(
                    f"{option}={value!r} would be the same text for every event; for the argument write "
                    f"{option}=lambda result, {value}: {value}"
                )
        if self.options.get("event_id") is not None and not callable(self.options["event_id"]):
            raise TypeError(ONE_ID_FOR_MANY)


class Plan:
    """How one function is published."""

    def __init__(self, told: Publishing, name: str, signature: inspect.Signature, call: Call) -> None:
        self.name, self.many, self._call = name, told.many, call
        self._told, self._signature = told, signature
        self._session = told.session if isinstance(told.session, str) else asking(told.session, positional=0)
        self._payload = told.payload if not callable(told.payload) else asking(told.payload, positional=1)
        self._functions = {
            option: asking(value, positional=1) for option, value in told.options.items() if callable(value)
        }
        self._values = {option: value for option, value in told.options.items() if option not in self._functions}

    def arguments(self, args: Any, kwargs: Any) -> Arguments:
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.arguments

    def transaction(self, arguments: Arguments) -> Any:
        return arguments[self._session] if isinstance(self._session, str) else self._session(arguments)

    def begun(self, transaction: Any) -> object:
        """The transaction that is open before the call."""
        identity = identity_of(open_transaction(transaction, self._call))
        if identity is None:
            raise TypeError(
                f"on a raw connection nobody can tell whether {self.name} ended its transaction: call "
                "outbox.publish(from_psycopg(connection), …) in it instead of decorating it"
            )
        return identity

    def require_same(self, transaction: Any, before: object) -> None:
        try:
            after = identity_of(open_transaction(transaction, self._call))
        except NoActiveTransaction:
            after = None
        if after is not before:
            raise NoActiveTransaction(
                f"{self.name} ended the transaction that it was given, so its event cannot be stored with its change: leave "
                "commit() and rollback() to the caller, who writes `with session.begin():` around the call"
            )

    def drafts(self, result: Any, arguments: Arguments) -> list[EventDraft]:
        """The events of one call."""
        match self._payload:
            case None:
                payload = result
            case str():
                payload = arguments[self._payload]
            case ask:
                payload = ask(arguments, result)
        if payload is None:
            raise PublishError(
                f"{self.name} gave None to publish: return the payload, or say what it is with payload=…"
            )
        if not self.many:
            return [self._draft(payload, result, arguments)]
        if not isinstance(payload, list | tuple):
            kind = type(payload).__name__
            raise PublishError(f"many=True publishes each item of a list, and {self.name} gave a {kind}")
        return [self._draft(item, item, arguments) for item in payload]

    def _draft(self, payload: Any, about: Any, arguments: Arguments) -> EventDraft:
        told = {option: ask(arguments, about) for option, ask in self._functions.items()}
        return EventDraft(self._told.event_type, payload, **self._values, **told)


def publishing(told: Publishing, outbox: Publishes) -> Callable[[Callable[P, R]], Callable[P, R]]:
    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        plan = told.of(function, is_async=False)

        @functools.wraps(function)
        def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = plan.arguments(args, kwargs)
            transaction = plan.transaction(arguments)
            before = plan.begun(transaction)
            result = function(*args, **kwargs)
            drafts = plan.drafts(result, arguments)
            plan.require_same(transaction, before)
            outbox.publish_batch(transaction, drafts) if plan.many else outbox.publish(transaction, drafts[0])
            return result

        return wrapper

    return decorate


def publishing_async(
    told: Publishing, outbox: Publishes, sync_side: Callable[[Any], Any]
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Callable[P, Coroutine[Any, Any, R]]]:
    def decorate(function: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[Any, Any, R]]:
        plan = told.of(function, is_async=True)

        @functools.wraps(function)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            arguments = plan.arguments(args, kwargs)
            transaction = plan.transaction(arguments)
            before = plan.begun(sync_side(transaction))
            result = await function(*args, **kwargs)
            drafts = plan.drafts(result, arguments)
            plan.require_same(sync_side(transaction), before)
            await (outbox.publish_batch(transaction, drafts) if plan.many else outbox.publish(transaction, drafts[0]))
            return result

        return wrapper

    return decorate


def asking(function: Callable[..., Any], *, positional: int) -> Callable[..., Any]:
    """`function` as something to call with (arguments, *first): it gets `first`, and those arguments that it has parameters for."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except ValueError:  # operator.itemgetter, str and others do not tell theirs
        return lambda _arguments, *first: function(*first)
    taken = {parameter.name for parameter in parameters[:positional]}
    others = [p.name for p in parameters[positional:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return lambda arguments, *first: function(*first, **{n: v for n, v in arguments.items() if n not in taken})
    return lambda arguments, *first: function(*first, **{n: arguments[n] for n in others if n in arguments})
