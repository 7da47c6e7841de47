"""Each server of the bench is real: it answers, stands still, dies, and comes back with its data."""

from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet

import pika
import psycopg
import pymysql
import pytest
import redis
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from sqlalchemy.engine import make_url

from tests.services.checks import CHECKS
from tests.services.topics import Topics

SLOW_TO_BOOT = [pytest.param("kafka", marks=pytest.mark.slow), pytest.param("rabbitmq", marks=pytest.mark.slow)]


def libpq(url):
    return url.replace("+psycopg", "")


def mariadb(url):
    place = make_url(url)
    return pymysql.connect(host=place.host, port=place.port, user=place.username, autocommit=True)


def produce(url, topic, value):
    reports = []
    producer = Producer({"bootstrap.servers": url, "linger.ms": 0})
    producer.produce(topic, value, on_delivery=lambda error, message: reports.append(error))
    assert producer.flush(20) == 0
    assert reports == [None]


def consume(url, topic):
    consumer = Consumer({"bootstrap.servers": url, "group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def test_postgresql_answers(postgresql_server):
    with psycopg.connect(libpq(postgresql_server)) as connection:
        assert connection.execute("SHOW fsync").fetchone() == ("on",)
        assert connection.execute("SHOW server_encoding").fetchone() == ("UTF8",)


def test_mariadb_answers(mariadb_server):
    with mariadb(mariadb_server) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT version(), @@innodb_flush_log_at_trx_commit")
        version, flush = cursor.fetchone()
    assert "MariaDB" in version
    assert flush == 1


def test_redis_answers(redis_url):
    with redis.Redis.from_url(redis_url) as client:
        client.set("bench", "here", ex=60)
        assert client.get("bench") == b"here"


def test_rabbitmq_confirms_and_delivers(rabbitmq_url):
    connection = pika.BlockingConnection(pika.URLParameters(rabbitmq_url))
    channel = connection.channel()
    channel.confirm_delivery()
    queue = channel.queue_declare("", exclusive=True).method.queue

    channel.basic_publish("", queue, b"hello", mandatory=True)

    assert channel.basic_get(queue, auto_ack=True)[2] == b"hello"
    connection.close()


def test_kafka_takes_and_gives(kafka_url, kafka_topic):
    topic = kafka_topic(partitions=3)

    produce(kafka_url, topic, b"hello")

    assert consume(kafka_url, topic) == b"hello"


def test_two_topics_of_one_name_are_two_topics(kafka_topic):
    assert kafka_topic("orders") != kafka_topic("orders")


def test_any_kafka_takes_messages(any_kafka_url, request):
    real = request.node.callspec.params["any_kafka_url"] == "real"
    topic = Topics(any_kafka_url).create() if real else "orders"

    produce(any_kafka_url, topic, b"hello")


@pytest.mark.parametrize("name", ["postgresql", "mariadb", "redis", *SLOW_TO_BOOT])
def test_a_paused_server_keeps_clients_waiting_until_it_is_resumed(own_server, name):
    server = own_server(name)

    with ThreadPoolExecutor(1) as caller:
        server.pause()
        call = caller.submit(CHECKS[name], server.url)
        with pytest.raises(NotYet):
            call.result(0.5)
        server.resume()
        call.result(10)


@pytest.mark.parametrize("name", ["postgresql", "mariadb", "redis", *SLOW_TO_BOOT])
def test_a_private_server_stops_and_comes_back_on_its_port(own_server, name):
    server = own_server(name)
    first = set(server.pids())

    server.stop()

    assert server.pids() == []
    with pytest.raises(
        (OSError, psycopg.OperationalError, pymysql.OperationalError, pika.exceptions.AMQPError, KafkaException)
    ):
        CHECKS[name](server.url)
    server.restart()
    CHECKS[name](server.url)
    assert first.isdisjoint(server.pids())


def test_a_killed_postgresql_keeps_what_was_committed(own_server):
    server = own_server("postgresql")
    with psycopg.connect(libpq(server.url)) as connection:
        connection.execute("CREATE TABLE kept (id int)")
        connection.execute("INSERT INTO kept VALUES (1)")
        connection.commit()
        connection.execute("INSERT INTO kept VALUES (2)")

        server.kill()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    server.restart()
    with psycopg.connect(libpq(server.url)) as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == [(1,)]


def test_a_postgresql_that_ends_at_once_says_so_and_keeps_what_was_committed(own_server):
    server = own_server("postgresql")
    last_words = []
    with psycopg.connect(libpq(server.url)) as connection:
        connection.add_notice_handler(lambda said: last_words.append(said.message_primary))
        connection.execute("CREATE TABLE kept (id int)")
        connection.commit()
        connection.execute("INSERT INTO kept VALUES (1)")

        server.abort()

        assert server.pids() == []
        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")
    assert last_words == ["terminating connection due to immediate shutdown command"]
    server.restart()
    with psycopg.connect(libpq(server.url)) as connection:
        assert connection.execute("SELECT id FROM kept").fetchall() == []
    assert "not properly shut down" in server.log_tail()


def test_a_killed_mariadb_keeps_what_was_committed(own_server):
    server = own_server("mariadb")
    with mariadb(server.url) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE kept")
        cursor.execute("CREATE TABLE kept.kept (id int) ENGINE=InnoDB")
        cursor.execute("INSERT INTO kept.kept VALUES (1)")
        server.kill()
    server.restart()

    with mariadb(server.url) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM kept.kept")
        assert cursor.fetchall() == ((1,),)


@pytest.mark.slow
def test_a_killed_kafka_keeps_what_was_acknowledged(own_server):
    server = own_server("kafka")
    topic = Topics(server.url).create()
    produce(server.url, topic, b"kept")

    server.kill()
    server.restart()

    assert consume(server.url, topic) == b"kept"


def test_two_private_servers_do_not_know_each_other(own_server):
    one, two = own_server("redis"), own_server("redis")

    one.kill()

    CHECKS["redis"](two.url)
    assert one.url != two.url


def test_a_database_behind_a_proxy_can_be_cut_off_and_healed(own_server):
    server = own_server("postgresql", behind_proxy=True)
    assert make_url(server.url).port == server.proxy.port
    CHECKS["postgresql"](server.url)
    passed = server.proxy.counters.bytes["answers"]
    assert passed > 0

    server.proxy.cut()

    with pytest.raises(psycopg.OperationalError):
        CHECKS["postgresql"](server.url)
    server.proxy.heal()
    CHECKS["postgresql"](server.url)
    assert server.proxy.counters.bytes["answers"] > passed


def test_kafka_behind_a_proxy_sends_its_clients_to_the_proxy(own_server):
    server = own_server("kafka", behind_proxy=True)
    topic = Topics(server.url).create()

    brokers = AdminClient({"bootstrap.servers": server.url}).list_topics(timeout=10).brokers.values()
    produce(server.url, topic, b"x" * 10_000)

    assert [broker.port for broker in brokers] == [server.proxy.port]
    assert server.proxy.counters.bytes["requests"] > 10_000


def test_a_server_without_proxy_says_how_to_get_one(own_server):
    with pytest.raises(LookupError, match="behind_proxy=True"):
        _ = own_server("redis").proxy
