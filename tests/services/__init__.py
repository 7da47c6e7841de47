"""The test bench: real PostgreSQL, MariaDB, Redis, RabbitMQ and Kafka for the suite.

Each server is looked for in this order:

1. a URL in the environment (``OUTBOX_TEST_POSTGRESQL_URL`` and so on, see ``catalogue``);
2. a Docker container, where an engine answers (``containers``);
3. a native process (``native``), from installed programs or, as root on Debian, from
   packages that ``install`` fetches unless ``NO_INSTALL=1``.

One bench process per run owns the servers (``bench``, spoken to through ``control`` and
``client``) and ends with the pytest process that wanted it, however that one ends.
``fixtures`` is the pytest plugin on top; ``python -m tests.services`` is the command line.
"""
