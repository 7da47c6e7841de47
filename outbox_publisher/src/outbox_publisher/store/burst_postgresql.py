"""A whole transaction in one write: BEGIN, its statements and COMMIT leave together, and their answers are read together.

Each answer that is waited for costs a turn on a busy machine, as long as the statement itself. psycopg's own pipeline writes statement by
statement, and a process that stands still between two of them leaves a server that waits for the rest with rows locked: busy, not idle in
a transaction, so that no timeout ends it. What arrived in one piece needs its client no more: the server goes on to the COMMIT.

One write is what fits into libpq's buffer. What does not is sent statement by statement, each answered before the next is sent; there the
server's timeout for idle transactions does its work.
"""

import select
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import psycopg
from psycopg import pq
from psycopg.adapt import PyFormat, Transformer

from outbox_publisher.store.arrays_postgresql import Packed

ONE_WRITE = 60_000
"""Bytes: libpq begins to send when it has 64 KiB."""
_BEGIN, _COMMIT = b"BEGIN ISOLATION LEVEL READ COMMITTED", b"COMMIT"
_KNOWN = "outbox_prepared"
_numbers = count(1)


class Answer:
    """What a statement has done; to be read when the burst is over."""

    def __init__(self, transformer: Any) -> None:
        self._transformer = transformer
        self.result: Any = None

    @property
    def rowcount(self) -> int:
        return self.result.command_tuples or 0

    def rows(self) -> list[tuple[Any, ...]]:
        self._transformer.set_pgresult(self.result, format=pq.Format.BINARY)
        rows: list[tuple[Any, ...]] = self._transformer.load_rows(0, self.result.ntuples, tuple)
        return rows


class _Statement:
    __slots__ = ("answer", "formats", "name", "text", "types", "values")

    def __init__(self, answer: Answer, text: bytes, values: Sequence[Any], types: Sequence[int], formats: Any) -> None:
        self.answer, self.text, self.values, self.types, self.formats = answer, text, values, tuple(types), formats
        self.name = b""

    @property
    def weight(self) -> int:
        return len(self.text) + sum([16 + len(value) for value in self.values])


class Burst:
    """For one transaction on a connection that nobody else uses, and that is in none."""

    def __init__(self, driver: "psycopg.Connection[Any]", info: dict[Any, Any]) -> None:
        """`info` is kept with the connection: there it stands what has been prepared, by text and types."""
        self._driver, self._pgconn = driver, driver.pgconn
        self._known: dict[tuple[bytes, tuple[int, ...]], bytes] = info.setdefault(_KNOWN, {})
        self._prepares = driver.prepare_threshold is not None
        self._transformer: Any = Transformer(driver)
        self._statements = [self._bare(_BEGIN)]

    def add(self, text: bytes, given: Sequence[Any]) -> Answer:
        """`text` with $1, $2, …; no value is None."""
        transformer, answer = self._transformer, Answer(self._transformer)
        ready = [b"" if isinstance(one, Packed) else one for one in given]
        values = list(transformer.dump_sequence(ready, [PyFormat.BINARY] * len(given)))
        types, formats = list(transformer.types or ()), list(transformer.formats or ())
        for place, one in enumerate(given):
            if isinstance(one, Packed):
                values[place], types[place], formats[place] = one.content, one.array_type, pq.Format.BINARY
        self._statements.append(_Statement(answer, text, values, types, formats))
        return answer

    def fly(self, meanwhile: Callable[[], object]) -> None:
        """`meanwhile` is called while the server is busy. An error comes out when everything has been heard; the transaction is then still
        open, and broken.
        """
        whole = [*self._statements, self._bare(_COMMIT)]
        at_once = sum([one.weight for one in whole]) <= ONE_WRITE
        self._pgconn.enter_pipeline_mode()
        try:
            for portion in [whole] if at_once else [[one] for one in whole]:
                self._send(portion)
                try:
                    if portion[-1] is whole[-1]:
                        meanwhile()
                finally:
                    error = self._hear(portion)
                if error is not None:
                    raise psycopg.errors.error_from_result(error, encoding=self._driver.info.encoding)
        finally:
            if self._pgconn.status == pq.ConnStatus.OK:
                self._pgconn.exit_pipeline_mode()
        if self._prepares:
            self._known |= {(one.text, one.types): one.name for one in whole if one.name}

    def _bare(self, text: bytes) -> _Statement:
        return _Statement(Answer(self._transformer), text, (), (), ())

    def _send(self, portion: Sequence[_Statement]) -> None:
        pgconn, binary = self._pgconn, pq.Format.BINARY
        for one in portion:
            if not self._prepares or not one.types:
                pgconn.send_query_params(one.text, one.values, one.types, one.formats, binary)
                continue
            one.name = self._known.get((one.text, one.types), b"")
            if not one.name:
                one.name = b"outbox_%d" % next(_numbers)
                pgconn.send_prepare(one.name, one.text, one.types)
            pgconn.send_query_prepared(one.name, one.values, one.formats, binary)
        pgconn.pipeline_sync()
        while pgconn.flush():
            if self._ready(select.POLLIN | select.POLLOUT) & select.POLLIN:
                pgconn.consume_input()

    def _hear(self, portion: Sequence[_Statement]) -> Any:
        """Every answer up to the end of what was sent; the first error, if there is one."""
        error = None
        for one in portion:
            newly_prepared = one.name and (one.text, one.types) not in self._known
            for _ in range(2 if newly_prepared else 1):
                while (result := self._result()) is not None:
                    one.answer.result = result
                    if result.status == pq.ExecStatus.FATAL_ERROR and error is None:
                        error = result
        self._result()  # the mark that this was all
        return error

    def _result(self) -> Any:
        while self._pgconn.is_busy():
            self._ready(select.POLLIN)
            self._pgconn.consume_input()
        return self._pgconn.get_result()

    def _ready(self, events: int) -> int:
        poll = select.poll()
        poll.register(self._pgconn.socket, events)
        return poll.poll()[0][1]
