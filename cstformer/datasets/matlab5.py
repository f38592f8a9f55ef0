"""Numeric arrays of MATLAB files of level 5 (versions 5 to 7); every declared length is checked before it is used.

A file is a header of 128 bytes and a list of elements. An element is a tag (kind, number of bytes) and its bytes,
padded to a multiple of eight. An array is an element whose bytes are elements themselves: class, shape, name and
numbers; it may be compressed as a whole. SciPy reads such files too, but a damaged file can crash the process.
"""

from __future__ import annotations

import math
import struct
import zlib
from pathlib import Path

import numpy as np

from cstformer.errors import CSTError
from cstformer.system.files import MAX_BYTES, check_bytes

_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_CLASSES = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
_ARRAY, _PACKED = 14, 15
_COMPLEX = 0x0800
_ABOUT = 4096  # class, shape and name of an array lie within this many bytes


def is_matlab5(path: Path) -> bool:
    """Whether the file has a header of level 5; a file of version 7.3 is HDF5 and begins with the same words."""
    with path.open("rb") as stream:
        head = stream.read(128)
    return len(head) == 128 and head[126:128] in (b"IM", b"MI") and head[124 if head[126:] == b"MI" else 125] == 1


def read_matlab5(path: Path, names: tuple[str, ...], max_bytes: int = MAX_BYTES) -> dict[str, np.ndarray]:
    """Read the real numeric arrays of these names, each of at most `max_bytes`."""
    found: dict[str, np.ndarray] = {}
    size = path.stat().st_size
    with path.open("rb") as stream:
        order = "<" if stream.read(128)[126:] == b"IM" else ">"
        while len(tag := stream.read(8)) == 8:
            kind, length = struct.unpack(f"{order}2I", tag)
            place = stream.tell()
            if length > size - place:
                raise CSTError(
                    f"{path} is cut off: an array of {length:,} bytes begins {size - place:,} bytes before its end"
                )
            if kind in (_ARRAY, _PACKED):
                about = stream.read(min(length, _ABOUT))
                body = _unpacked(about, order, _ABOUT) if kind == _PACKED else about
                name, shape, _ = _about(body, order)
                if name in names:
                    check_bytes(path, 8 * math.prod(shape), max_bytes)
                    most = 8 * math.prod(shape) + _ABOUT
                    stream.seek(place)
                    whole = stream.read(length)
                    found[name] = _array(_unpacked(whole, order, most) if kind == _PACKED else whole, order)
            stream.seek(place + length)
    return found


def _unpacked(data: bytes, order: str, most: int) -> bytes:
    """Bytes of a compressed array, without its tag."""
    body = zlib.decompressobj().decompress(data, most + 8)
    if len(body) < 8 or struct.unpack_from(f"{order}I", body)[0] != _ARRAY:
        raise CSTError("a compressed part is no array; the file is damaged")
    return body[8:]


def _element(body: bytes, place: int, order: str) -> tuple[int, int, int, int]:
    """Kind, first byte and length of the element at a place, and the place of the next one."""
    if place + 8 > len(body):
        raise CSTError("an array ends in the middle; the file is damaged")
    kind, length = struct.unpack_from(f"{order}2I", body, place)
    if kind >> 16:  # a short element: four bytes of tag, at most four of data
        return kind & 0xFFFF, place + 4, min(4, kind >> 16), place + 8
    return kind, place + 8, length, place + 8 + 8 * -(-length // 8)


def _about(body: bytes, order: str) -> tuple[str, tuple[int, ...], int]:
    """Name and shape of an array, and the place of its numbers; the name is "" unless it is real and numeric."""
    _, flags, _, place = _element(body, 0, order)
    _, first, length, place = _element(body, place, order)
    shape = struct.unpack_from(f"{order}{length // 4}i", body[first : min(first + length, first + 128)])
    _, name, letters, place = _element(body, place, order)
    flag = struct.unpack_from(f"{order}I", body, flags)[0]
    if flag & 0xFF not in _CLASSES or flag & _COMPLEX or not shape or min(shape) < 0:
        return "", (), place
    return body[name : name + letters].decode("latin-1"), shape, place


def _array(body: bytes, order: str) -> np.ndarray:
    name, shape, place = _about(body, order)
    kind, first, length, _ = _element(body, place, order)
    if kind not in _NUMBERS or length != np.dtype(_NUMBERS[kind]).itemsize * math.prod(shape):
        raise CSTError(f"the array {name!r} of shape {shape} has {length:,} bytes of kind {kind}; the file is damaged")
    if first + length > len(body):
        raise CSTError(f"the array {name!r} ends in the middle; the file is damaged")
    stored = np.frombuffer(body, f"{order}{_NUMBERS[kind]}", math.prod(shape), first)
    flag = struct.unpack_from(f"{order}I", body, _element(body, 0, order)[1])[0]
    return stored.reshape(shape, order="F").astype(_CLASSES[flag & 0xFF])
