"""The decision rule for Kafka's error codes, code by code."""

import pytest

from outbox_publisher.senders.kafka_errors import Verdict, verdict_of


@pytest.mark.parametrize(
    ("codes", "verdict"),
    [
        ((10, 87, 32, 2, 4, 18, 43, 44, 76, -138), Verdict.ALONE),
        ((17,), Verdict.REJECT),
        ((3, -188, -190), Verdict.UNKNOWN_TOPIC),
        ((29, 31, 53), Verdict.FORBIDDEN),
        ((45, 47, 59, 90, -144, -150, -172), Verdict.FATAL),
        ((-195, -185, 5, 6, 9, 13, 19, 20, 56), Verdict.UNAVAILABLE),
        ((-192,), Verdict.TIMED_OUT),
        ((-152,), Verdict.PURGED),
        ((-151,), Verdict.PURGED_IN_FLIGHT),
        ((1, 7, -1, -196, 9999), Verdict.RETRY),
    ],
)
def test_each_code_has_one_meaning(codes, verdict):
    assert {verdict_of(code) for code in codes} == {verdict}


@pytest.mark.parametrize("code", [10, 3, -192, 9999])
def test_an_error_that_calls_itself_fatal_is_fatal_whatever_its_code(code):
    assert verdict_of(code, fatal=True) is Verdict.FATAL
