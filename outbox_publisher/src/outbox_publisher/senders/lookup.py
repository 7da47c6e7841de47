"""A sender by its name: an installed entry point, or `module:attribute` as other servers take it on their command line."""

import importlib
import os
import sys
from typing import Any

from outbox_publisher.plugins import GROUP, installed_senders
from outbox_publisher.senders.base import Sender
from outbox_publisher.senders.handlers import Handlers, HandlerSender
from outbox_publisher.settings import PublisherSettings
from outbox_shared.clock import Clock
from outbox_shared.errors import ConfigurationError

FORM = "a function (settings, clock) that returns a sender"


def sender_named(key: str, name: str, settings: PublisherSettings, clock: Clock) -> Sender:
    """What `name` stands for, made and checked. `key` is the setting that holds the name, for the errors."""
    where = f"outbox.publisher.sender.{key} {name!r}"
    found = _find(where, name)
    if isinstance(found, Handlers):
        if settings.sender.type in {"kafka", "rabbitmq", "memory"}:
            raise ConfigurationError(
                f"{where} is a Handlers registry, and sender.type is {settings.sender.type}: write type: handlers"
            )
        return HandlerSender(found, settings.sender, clock)
    if not callable(found):
        raise ConfigurationError(f"{where} is {_kind(found)}; it must be {FORM}, or a Handlers registry")
    try:
        made = found(settings, clock)
    except Exception as error:
        raise ConfigurationError(
            f"{where}: no sender could be made: {type(error).__name__}: {error}; it must be {FORM}"
        ) from error
    if not all(callable(getattr(made, method, None)) for method in ("send", "close")):
        raise ConfigurationError(f"{where} made {_kind(made)}; a sender has the methods send and close")
    sender: Sender = made
    return sender


def _find(where: str, name: str) -> Any:
    installed = installed_senders()
    if name in installed:
        entry = installed[name][0]
        if len({other.value for other in installed[name]}) > 1:
            owners = " and ".join(other.dist.name for other in installed[name] if other.dist is not None)
            raise ConfigurationError(f"{where} is an entry point of {owners}: write module:attribute instead")
        return _import(where, entry.module, entry.attr)
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        names = ", ".join(installed) or "none is installed"
        raise ConfigurationError(
            f"{where} names nothing: write an entry point of the group {GROUP} ({names}), "
            "or module:attribute such as shop.events:handlers"
        )
    if not {"", os.getcwd()} & set(sys.path):  # noqa: PTH109 - compared with entries that are text
        sys.path.insert(0, os.getcwd())  # noqa: PTH109 - a console script does not look in the working directory by itself
    return _import(where, module, attribute)


def _import(where: str, module: str, attribute: str) -> Any:
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever a module of the user's own does while it is imported
        raise ConfigurationError(f"{where}: importing {module} failed: {type(error).__name__}: {error}") from error
    for part in filter(None, attribute.split(".")):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigurationError(f"{where}: {_kind(found)} has no {part}") from None
    return found


def _kind(found: Any) -> str:
    name = getattr(found, "__name__", None)
    return f"{type(found).__name__} {name}" if isinstance(name, str) else f"an object of class {type(found).__name__}"
