"""Two limits that Bokeh's server does not have: on what a message unpacks to, and on what an error tells the visitor.

Bokeh has no options for them, so that its two functions are replaced, in the process of the explorer alone.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any

from bokeh.core.serialization import DeserializationError, Deserializer
from bokeh.protocol.messages.error import Error, error

MAX_UNPACKED = 2**26
"""Bytes to which all parts of a message together may unpack. An upload of 50 MB arrives in smaller chunks."""
APOLOGY = "the server could not handle this message; its terminal has the details"


class TooLarge(ValueError):
    """Data unpack to more bytes than they may."""


def guard_bokeh() -> None:
    """Limit what messages unpack to, and keep tracebacks in the terminal, where Bokeh logs them as well."""
    Deserializer._decode_bytes = _bounded_bytes  # type: ignore[method-assign]
    error.create = classmethod(_short_error)  # type: ignore[method-assign, assignment]


def unpacked(data: bytes, most: int) -> bytes:
    """The content of gzip data of at most so many bytes.

    >>> import gzip
    >>> unpacked(gzip.compress(bytes(1000)), 1000) == bytes(1000)
    True
    >>> unpacked(gzip.compress(bytes(1001)), 1000)
    Traceback (most recent call last):
    ...
    cstformer.explorer.guards.TooLarge: more than 1,000 bytes
    """
    content = zlib.decompressobj(wbits=31).decompress(data, most + 1)  # 31: gzip
    if len(content) > most:
        raise TooLarge(f"more than {most:,} bytes")
    return content


_decode_bytes = Deserializer._decode_bytes


def _bounded_bytes(self: Deserializer, obj: Any) -> Any:
    if not isinstance(obj["data"], str):
        return _decode_bytes(self, obj)
    taken = getattr(self, "_unpacked", 0)  # by other parts: each message has a deserialiser of its own
    try:
        content = unpacked(base64.b64decode(obj["data"]), MAX_UNPACKED - taken)
    except TooLarge:
        raise DeserializationError(f"a message unpacks to more than {MAX_UNPACKED:,} bytes") from None
    except (ValueError, zlib.error) as reason:
        raise DeserializationError(str(reason)) from None
    self._unpacked = taken + len(content)  # type: ignore[attr-defined]
    return content


def _short_error(cls: Any, request_id: Any, text: str, **metadata: Any) -> Any:
    return cls(cls.create_header(request_id=request_id), metadata, Error(text=APOLOGY, traceback=None))
