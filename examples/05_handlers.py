"""Handlers in the relay's own process, without a broker: parents are told of an absence once it is stored, and a failure is retried.

python examples/05_handlers.py
"""

import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from outbox_publisher import Event, Handlers, HandlerSender, Outbox, PublisherSettings, Relay, configure_sqlite

handlers = Handlers()
tries = 0


@dataclass
class AbsenceNotice:
    absence_notice_id: int
    student_id: int


@handlers.on("attendance.absence_notice_submitted")
async def tell_parents(event: Event) -> None:
    """`def` or `async def`: when it returns, the event is done. A crash may run it again, so it should not mind doing so."""
    print(f"told the parents of student {event.json()['student_id']}")


@handlers.on("attendance.absence_report_requested")
def report(event: Event) -> None:
    """What raises is run again after its backoff; `raise Reject("no such student")` would make it a dead letter at once."""
    global tries  # noqa: PLW0603 - an example's memory
    tries += 1
    print(f"reported the absence of student {event.json()['student_id']}: try {tries}")
    if tries == 1:
        raise ConnectionError("the ministry is closed")


def main(folder: Path) -> None:
    settings = PublisherSettings(
        database_url=f"sqlite:///{folder / 'school.db'}",
        name="school",
        sender={"type": "handlers"},
        events={"attendance.absence_report_requested": {"backoff": {"delay": "100ms", "jitter": 0}}},
    )
    sender = HandlerSender(handlers, settings.sender)
    relay = Relay(settings, sender=sender)  # creates the tables
    outbox = Outbox(settings)

    engine = configure_sqlite(create_engine(settings.require_database_url()))
    with Session(engine) as session, session.begin():
        notice = AbsenceNotice(absence_notice_id=4711, student_id=17)  # session.add(notice) in real life
        outbox.publish(session, "attendance.absence_notice_submitted", notice, correlation_id="req-123")
        outbox.publish(session, "attendance.absence_report_requested", notice)
    engine.dispose()

    turn = relay.run_once()  # in real life: relay.run(), or `outbox-publisher run` with sender.bean-name
    print(f"after one round: {turn.delivered} delivered, {turn.rescheduled} waits")
    time.sleep(0.2)
    turn = relay.run_once()
    print(f"after another: {turn.delivered} delivered, {turn.rescheduled} wait")
    relay.close()
    sender.close()


if __name__ == "__main__":
    logging.getLogger("outbox_publisher").setLevel(logging.ERROR)  # the failure above is meant
    with tempfile.TemporaryDirectory() as folder:
        main(Path(folder))
