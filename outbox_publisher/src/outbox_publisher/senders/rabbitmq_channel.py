"""The publishing channel of one connection: confirms by delivery tag, and what to do when the broker closes it over one message.

A closed channel does not say which message it was, and takes the confirms of the others with it. So an exchange that this connection has
not seen yet is first asked for on a channel of its own; where the error names an exchange, its rows take the blame; and otherwise every
row without an answer is published again alone, until the one that closes the channel alone is found.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from pika.exceptions import AMQPError, ChannelClosedByBroker, NoFreeChannels
from pika.spec import Basic

from outbox_publisher.senders.base import SendResult
from outbox_publisher.senders.grace import Grace
from outbox_publisher.senders.rabbitmq_client import Inquiry, Link, flaw_of, told
from outbox_publisher.senders.rabbitmq_flight import DELIVERED, EARLIER, RabbitFlight, properties_of

Row = tuple[RabbitFlight, int]
"""An event: its flight, and its place there."""

NOT_FOUND, ACCESS_REFUSED = 404, 403
UNFIT = (AMQPError, ValueError, TypeError, AttributeError, AssertionError, OverflowError, struct.error)
"""What pika raises for a message that it cannot encode; nothing of it has been written then."""


class Publisher:
    """Lives as long as its connection, on the thread of that connection."""

    def __init__(self, link: Link, grace: Grace, fail: Callable[[str], None]) -> None:
        self._link, self._grace, self._fail = link, grace, fail
        self.confirmed = 0
        """The highest delivery tag that the channel has confirmed."""
        self._channel: Any = None
        self._ready = False
        self._tag = 0
        self._pending: dict[int, Row] = {}  # in the order of their tags
        self._returned: dict[str, str] = {}  # reasons by message id; the ack of the same message comes next
        self._known = {""}
        self._asked: dict[str, list[Row]] = {}
        self._waiting: deque[Row] = deque()
        self._suspects: deque[Row] = deque()
        self._alone = False
        self._open_channel()

    def publish(self, rows: Iterable[Row]) -> None:
        """Publish them as soon as the channel is ready and knows their exchanges."""
        if not self._ready or self._alone or self._suspects:
            self._waiting.extend(rows)
            return
        gathered = self._link.gather()
        try:
            for row in rows:
                self._publish_one(row, gathered)
        finally:
            self._link.release()

    # Out.

    def _publish_one(self, row: Row, gathered: list[bytes]) -> None:
        flight, index = row
        if not flight.is_open(index):
            return
        event = flight.events[index]
        if event.topic not in self._known and self._held_back(event.topic, row):
            return
        first = len(gathered)
        try:
            self._channel.basic_publish(
                event.topic, event.event_type, event.payload, properties_of(event), mandatory=True
            )
        except UNFIT as error:
            flight.settle(index, SendResult.reject(f"RabbitMQ's client cannot encode it: {told(error)}"))
            return
        # frames: method, header, body…; only the body may be split, and a larger header would cost the connection
        if len(gathered[first + 1]) > self._link.params.frame_max:
            del gathered[first:]
            flight.settle(
                index, SendResult.reject(f"its headers are larger than a frame ({self._link.params.frame_max} bytes)")
            )
            return
        self._tag += 1
        flight.tags[index] = self._tag
        self._pending[self._tag] = row

    def _held_back(self, exchange: str | None, row: Row) -> bool:
        """Whether the row must wait for what the broker says about its exchange, or needs no more waiting."""
        flaw = "the event was stored without a topic" if exchange is None else flaw_of(exchange)
        if exchange is None or flaw is not None:
            row[0].settle(row[1], SendResult.reject(flaw or ""))
        elif exchange in self._asked:
            self._asked[exchange].append(row)
        else:
            try:
                Inquiry(self._link, exchange, lambda error: self._exchange_told(exchange, error))
            except NoFreeChannels:
                self._known.add(exchange)  # nobody can be asked: publishing will tell
                return False
            self._asked[exchange] = [row]
        return True

    def _exchange_told(self, exchange: str, error: Exception | None) -> None:
        if self._link.is_closed:
            return
        rows = self._asked.pop(exchange)
        if isinstance(error, ChannelClosedByBroker) and error.reply_code == NOT_FOUND:
            self._missing(exchange, rows, told(error))
            return
        if error is None:
            self._grace.answered(exchange)
        self._known.add(exchange)  # after any other error publishing will tell
        self.publish(rows)

    def _missing(self, exchange: str, rows: Iterable[Row], reason: str) -> None:
        self._known.discard(exchange)
        result = self._grace.refused(exchange, reason)
        for flight, index in rows:
            flight.settle(index, result)

    def _advance(self) -> None:
        """One suspect after the other, each when the last one has its answer; then whoever has waited meanwhile."""
        self._alone = False
        while self._suspects:
            row = self._suspects.popleft()
            self._publish_one(row, self._link.gather())
            self._link.release()
            if self._pending:
                self._alone = True
                return
        waiting, self._waiting = self._waiting, deque()
        self.publish(waiting)

    # Answers.

    def _on_confirm(self, frame: Any) -> None:
        method, pending = frame.method, self._pending
        acked, last = isinstance(method, Basic.Ack), method.delivery_tag
        tags = [last]
        if method.multiple:
            tags = []
            for tag in pending:
                if tag > last:
                    break
                tags.append(tag)
        if acked and last > self.confirmed:
            self.confirmed = last
        for tag in tags:
            row = pending.pop(tag, None)
            if row is not None:
                flight, index = row
                flight.settle(index, self._verdict(flight, index, acked))
        if self._alone and not pending:
            self._advance()

    def _verdict(self, flight: RabbitFlight, index: int, acked: bool) -> SendResult:
        event = flight.events[index]
        place = (event.topic, event.event_type)
        if self._returned:
            reason = self._returned.pop(str(event.id), None)
            if reason is not None:
                return self._grace.refused(
                    place, f"{reason}: exchange {event.topic!r} has no queue for {event.event_type!r}"
                )
        if not acked:
            return SendResult.retry("RabbitMQ did not take it (basic.nack): a queue is full or has failed")
        self._grace.answered(place)
        return DELIVERED

    def _on_return(self, _channel: Any, method: Any, properties: Any, _body: bytes) -> None:
        """Comes before the ack of the same message, which would say that all is well."""
        self._returned[properties.message_id] = method.reply_text

    # The channel's life.

    def _open_channel(self) -> None:
        if self._link.is_open:
            self._channel = self._link.channel(on_open_callback=self._on_open)
            self._channel.add_on_close_callback(self._on_close)

    def _on_open(self, channel: Any) -> None:
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=self._on_ready)

    def _on_ready(self, _frame: Any) -> None:
        self._ready = True
        self._advance()

    def _on_close(self, _channel: Any, error: Exception) -> None:
        if not self._link.is_open:
            return  # the connection's own end tells everybody
        if not self._ready:
            self._fail(told(error))
            return
        rows = [row for row in self._pending.values() if row[0].is_open(row[1])]
        for flight, index in rows:
            flight.tags[index] = EARLIER
        self._ready, self._tag, self.confirmed = False, 0, 0
        self._pending.clear()
        self._returned.clear()
        self._blame(rows, getattr(error, "reply_code", 0), told(error))
        # not from within pika's own clean-up, which still has the old channel's number
        self._link.ioloop.call_later(0, self._open_channel)

    def _blame(self, rows: list[Row], code: int, reason: str) -> None:
        """Settle whoever is to blame, and let the others go again."""
        exchanges = {_exchange(row) for row in rows} if code in {NOT_FOUND, ACCESS_REFUSED} else set()
        named = next((exchange for exchange in exchanges if _names(reason, exchange)), None)
        if named is not None:
            blamed = [row for row in rows if _exchange(row) == named]
            if code == NOT_FOUND:
                self._missing(named, blamed, reason)
            for flight, index in blamed:
                flight.settle(index, SendResult.unavailable(reason, scope="topic"))
            self._waiting.extendleft(row for row in reversed(rows) if _exchange(row) != named)
        elif self._alone:
            for flight, index in rows:
                flight.settle(index, SendResult.reject(reason))
        else:
            self._suspects.extend(rows)


def _exchange(row: Row) -> str:
    return row[0].events[row[1]].topic or ""


def _names(reason: str, exchange: str) -> bool:
    """Whether the broker's text names this exchange: "no exchange 'orders' in vhost '/'"."""
    return f"exchange '{exchange or 'amq.default'}' in vhost" in reason
