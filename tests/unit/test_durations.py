from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from outbox_shared.durations import Duration, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "duration"),
    [
        ("500ms", timedelta(milliseconds=500)),
        ("10s", timedelta(seconds=10)),
        ("1.5s", timedelta(seconds=1.5)),
        ("5m", timedelta(minutes=5)),
        ("1h30m", timedelta(minutes=90)),
        ("720h", timedelta(days=30)),
        ("7d", timedelta(days=7)),
        (" 2 H ", timedelta(hours=2)),
        ("0", timedelta(0)),
        (0, timedelta(0)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_durations_are_read_with_their_unit(text, duration):
    assert parse_duration(text) == duration


@pytest.mark.parametrize(
    "wrong", ["", "10", 10, 1.5, "ten seconds", "10 sec", "-5s", "1h-5m", "s", None, True, False, [], "9" * 400 + "d"]
)
def test_anything_else_is_refused(wrong):
    with pytest.raises(ValueError, match=r"duration"):
        parse_duration(wrong)


def test_a_negative_timedelta_is_refused():
    with pytest.raises(ValueError, match="negative"):
        parse_duration(timedelta(seconds=-1))


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_500)))
def test_what_is_written_is_read_back(duration):
    assert parse_duration(format_duration(duration)) == duration


def test_as_a_pydantic_field():
    class Model(BaseModel):
        delay: Duration = timedelta(seconds=1)

    assert Model(delay="90s").model_dump_json() == '{"delay":"1m30s"}'
    with pytest.raises(ValidationError, match="such as 500ms, 10s"):
        Model(delay=90)
