"""Django: the event is stored in the transaction of `transaction.atomic()`, on Django's own connection.

pip install outbox-publisher django
python examples/04_django.py
"""

import tempfile
from pathlib import Path

import django
from django.conf import settings as django_settings


def main(folder: Path) -> None:
    database = folder / "shop.db"
    django_settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(database)}})
    django.setup()

    from django.db import connection, transaction  # noqa: PLC0415 - only after setup()

    from outbox_publisher import Outbox, PublisherSettings, Relay, from_django  # noqa: PLC0415
    from outbox_publisher.senders import MemorySender  # noqa: PLC0415

    settings = PublisherSettings(database_url=f"sqlite:///{database}", name="shop", defaults={"topic": "orders"})
    broker = MemorySender()
    relay = Relay(settings, sender=broker)  # in real life a process of its own: outbox-publisher run
    outbox = Outbox(settings)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE orders (id INTEGER)")

    def take_order(number: int) -> None:
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("INSERT INTO orders VALUES (%s)", [number])  # or Order.objects.create(…)
            outbox.publish(from_django(), "order-placed", {"id": number}, key=number)
            if number == 2:
                raise RuntimeError("out of stock")

    for number in (1, 2, 3):
        try:
            take_order(number)
        except RuntimeError as error:
            print(f"order {number}: {error}")
    connection.close()

    relay.run_once()
    relay.close()
    print("sent:", ", ".join(str(event.key) for event in broker.sent))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
