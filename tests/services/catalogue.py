"""What the bench knows about each server, on one screen.

The images are those of docker-compose.yml; a unit test keeps the two together.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

KAFKA_VERSION = "4.1.1"


class Unavailable(Exception):
    """The server was not found, or it could not be started; the message says why."""


@dataclass(frozen=True)
class Kind:
    name: str
    image: str
    # (driver-neutral URL schemes, the one the suite wants)
    schemes: tuple[tuple[str, ...], str]
    # The native programs, and the Debian packages that bring them.
    programs: tuple[str, ...]
    packages: tuple[str, ...]
    # Takes both cores for seconds; warmed up after the others, which are then there at once.
    boots_slowly: bool = False

    @property
    def variable(self) -> str:
        return f"OUTBOX_TEST_{self.name.upper()}_URL"


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind(
            name="postgresql",
            image="postgres:15.14",
            schemes=(("postgres", "postgresql"), "postgresql+psycopg"),
            programs=("postgres", "initdb"),
            packages=("postgresql",),
        ),
        Kind(
            name="mariadb",
            image="mariadb:10.11.14",
            schemes=(("mysql", "mariadb"), "mysql+pymysql"),
            programs=("mariadbd",),
            packages=("mariadb-server-core",),
        ),
        Kind(
            name="redis",
            image="redis:7.4.6",
            schemes=((), "redis"),
            programs=("redis-server",),
            packages=("redis-server",),
        ),
        Kind(
            name="rabbitmq",
            image="rabbitmq:3.13.7-management",
            schemes=((), "amqp"),
            programs=("rabbitmq-server", "epmd"),
            packages=("rabbitmq-server",),
            boots_slowly=True,
        ),
        Kind(
            name="kafka",
            image=f"apache/kafka:{KAFKA_VERSION}",
            schemes=((), ""),
            programs=("java", "mvn"),
            packages=("default-jre-headless", "maven"),
            boots_slowly=True,
        ),
    )
}


@dataclass(frozen=True)
class Companion:
    """A server in front of another one; private ones only, as native processes, whatever runs the others."""

    name: str
    programs: tuple[str, ...]
    packages: tuple[str, ...]


COMPANIONS: dict[str, Companion] = {
    "pgbouncer": Companion(name="pgbouncer", programs=("pgbouncer",), packages=("pgbouncer",)),
}


def installable(name: str) -> Kind | Companion:
    return KINDS[name] if name in KINDS else COMPANIONS[name]


def url_from_environment(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """The URL somebody set for this server, with the driver the suite uses."""
    kind = KINDS[name]
    url = environ.get(kind.variable, "").strip()
    if not url:
        return None
    plain, wanted = kind.schemes
    scheme, separator, rest = url.partition("://")
    if separator and scheme.partition("+")[0] in plain:
        return f"{wanted}://{rest}"
    return url
