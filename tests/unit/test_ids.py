from uuid import UUID

import pytest

from outbox_shared.errors import MalformedEventId
from outbox_shared.ids import lane_of, new_event_id, parse_event_id

AN_ID = UUID("0190f0f0-0000-7000-8000-000000000001")


def test_ids_are_version_7_and_grow():
    ids = [new_event_id() for _ in range(1000)]

    assert {i.version for i in ids} == {7}
    assert len(set(ids)) == 1000
    assert ids == sorted(ids)


def test_the_lane_is_a_constant_of_the_contract():
    # given by crc32 & 1023: stored rows depend on these numbers
    assert lane_of("order-1", AN_ID) == 1007
    assert lane_of(None, AN_ID) == 199
    assert lane_of("ü", AN_ID) == 469


@pytest.mark.parametrize(
    "value",
    [str(AN_ID), str(AN_ID).upper(), str(AN_ID).encode(), bytearray(str(AN_ID).encode()), AN_ID],
    ids=["text", "upper case", "bytes", "bytearray", "UUID"],
)
def test_an_id_is_read_from_text_bytes_and_uuid(value):
    assert parse_event_id(value) == AN_ID


@pytest.mark.parametrize(
    "value",
    ["", "42", AN_ID.hex, f"{AN_ID.hex}----", f"{{{{{AN_ID.hex}}}}}", f"{{{AN_ID}}}", f"urn:uuid:{AN_ID}",
     str(AN_ID)[:-1] + "g", b"\xff" * 36, AN_ID.bytes, None, 7,
     "\uff10190f0f0-0000-7000-8000-000000000001"],
)  # fmt: skip
def test_anything_else_is_refused_with_the_form_to_write(value):
    with pytest.raises(MalformedEventId, match="36 characters"):
        parse_event_id(value)
