"""`python -m outbox_publisher` is the command `outbox-publisher`."""

from outbox_publisher.cli import main

main()
