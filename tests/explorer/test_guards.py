"""What a visitor sends is bounded when it is unpacked, and what the server answers holds no traceback."""

import base64
import gzip

import pytest
from bokeh.core.serialization import DeserializationError, Deserializer
from bokeh.protocol import Protocol
from processes import starved

from cstformer.explorer.guards import APOLOGY, MAX_UNPACKED, guard_bokeh


@pytest.fixture(autouse=True)
def guarded():
    guard_bokeh()


def packed(content: bytes) -> dict:
    return {"type": "bytes", "data": base64.b64encode(gzip.compress(content)).decode()}


def decode(message: dict) -> int:
    guard_bokeh()
    return len(Deserializer().decode(message))


def test_a_message_that_unpacks_to_gigabytes_is_refused_in_little_memory():
    bomb = packed(bytes(MAX_UNPACKED + 1))
    assert len(bomb["data"]) < 2**17
    outcome, why, taken = starved(2**28, decode, bomb)
    assert (outcome, why) == ("DeserializationError", f"a message unpacks to more than {MAX_UNPACKED:,} bytes")
    assert taken < 3 * MAX_UNPACKED


def decode_parts(parts: list[dict]) -> int:
    guard_bokeh()
    return len(Deserializer().decode(parts))


def test_many_parts_of_a_message_share_one_limit():
    """Half a megabyte that unpacks to 480 MB, in parts that are each allowed."""
    bombs = 12 * [packed(bytes(MAX_UNPACKED * 5 // 8))]
    outcome, why, taken = starved(2**28, decode_parts, bombs)
    assert (outcome, why) == ("DeserializationError", f"a message unpacks to more than {MAX_UNPACKED:,} bytes")
    assert taken < 3 * MAX_UNPACKED
    for _ in range(2):  # the next message begins anew
        assert decode_parts([packed(bytes(MAX_UNPACKED // 2))] * 2) == 2


def test_ordinary_messages_are_unpacked():
    content = bytes(range(256)) * 100
    assert Deserializer().decode(packed(content)) == content
    with pytest.raises(DeserializationError):
        Deserializer().decode({"type": "bytes", "data": base64.b64encode(b"no gzip").decode()})


def test_an_error_does_not_carry_the_traceback_to_the_visitor():
    try:
        raise OSError("/etc/a-private-path")
    except OSError as reason:
        message = Protocol().create("ERROR", "7", repr(reason))
    assert message.content == {"text": APOLOGY, "traceback": None}
    assert not any("private" in str(part) for part in (message.content, message.header, message.metadata))
