"""The settings of a one-node Kafka for tests: it starts fast, stays small and comes back soon after a kill."""

from tests.services.ports import HOST

SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "BENCH",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,BENCH:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.session.timeout.ms": "3000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
    # A killed broker's session must end before it may come back: 2-5 s instead of 13.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    # The default buffer alone does not fit into the small heap.
    "log.cleaner.dedupe.buffer.size": "4194304",
}


def server_properties(data: str, port: int, bench_port: int, controller_port: int, advertised_port: int) -> str:
    bench = f"BENCH://{HOST}:{bench_port}"
    places = {
        "log.dirs": data,
        "controller.quorum.voters": f"1@{HOST}:{controller_port}",
        "listeners": f"PLAINTEXT://{HOST}:{port},{bench},CONTROLLER://{HOST}:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{advertised_port},{bench}",
    }
    return "".join(f"{name}={value}\n" for name, value in {**SETTINGS, **places}.items())
