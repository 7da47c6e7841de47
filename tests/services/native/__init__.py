"""Servers as processes of this machine, one module each."""

from pathlib import Path

from tests.services.native.kafka import Kafka
from tests.services.native.mariadb import MariaDB
from tests.services.native.pgbouncer import PgBouncer
from tests.services.native.postgresql import PostgreSQL
from tests.services.native.rabbitmq import RabbitMQ
from tests.services.native.redis import Redis
from tests.services.native.server import NativeServer

SERVERS: dict[str, type[NativeServer]] = {
    "postgresql": PostgreSQL,
    "mariadb": MariaDB,
    "redis": Redis,
    "rabbitmq": RabbitMQ,
    "kafka": Kafka,
    "pgbouncer": PgBouncer,
}


def native_server(name: str, home: Path, advertised_port: int | None = None) -> NativeServer:
    """A server that is not started yet; `home` is where it will keep everything it has."""
    server = SERVERS[name](home)
    server.advertised_port = advertised_port
    return server
