"""One real client call per server: raises while the server is not ready for clients.

Clients are imported when they are used: together they take seconds, and a run needs one or two.
"""

import socket
from collections.abc import Callable
from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

CLIENTS = {
    "postgresql": "psycopg",
    "pgbouncer": "psycopg",
    "mariadb": "pymysql",
    "redis": "socket",
    "rabbitmq": "pika",
    "kafka": "confluent_kafka.admin",
}


def client_of(name: str) -> Any:
    """The client's module; asked for while the server boots, it is there for the first check."""
    return import_module(CLIENTS[name])


def check_postgresql(url: str) -> None:
    with client_of("postgresql").connect(url.replace("+psycopg", ""), connect_timeout=5) as connection:
        connection.execute("SELECT 1")


def check_mariadb(url: str) -> None:
    place = urlsplit(url)
    with client_of("mariadb").connect(
        host=place.hostname, port=place.port or 3306, user=place.username, connect_timeout=5, read_timeout=5
    ) as connection:
        connection.ping(reconnect=False)


def check_redis(url: str) -> None:
    place = urlsplit(url)
    # Its client takes half a second to import, its protocol one line.
    with socket.create_connection((place.hostname, place.port or 6379), timeout=5) as connection:
        connection.sendall(b"PING\r\n")
        answer = connection.recv(64)
    if answer != b"+PONG\r\n":
        raise ConnectionError(f"Redis says {answer!r}")


def check_rabbitmq(url: str) -> None:
    pika = client_of("rabbitmq")
    pika.BlockingConnection(pika.URLParameters(f"{url}?socket_timeout=5&stack_timeout=10")).close()


def check_kafka(url: str) -> None:
    client = client_of("kafka").AdminClient({"bootstrap.servers": url, "log_level": 0})
    if not client.list_topics(timeout=5).brokers:
        raise ConnectionError("no broker has registered yet")


CHECKS: dict[str, Callable[[str], None]] = {
    "postgresql": check_postgresql,
    "pgbouncer": check_postgresql,
    "mariadb": check_mariadb,
    "redis": check_redis,
    "rabbitmq": check_rabbitmq,
    "kafka": check_kafka,
}
