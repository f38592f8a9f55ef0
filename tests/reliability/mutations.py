"""Damage files the way disks, networks and attackers do; everything follows from the generator."""

from __future__ import annotations

import io
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

HUGE = (0, 1, 127, 255, 2**15 - 1, 2**16 - 1, 10**9, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**64 - 1)
TEXTS = (b"0", b"-1", b"99999999999", b"1e308", b"nan", b"inf", b"null", b"[]", b'"\\u0000"', b"9" * 400)
METADATA = (".json", ".zarray", ".zattrs", ".zgroup")


def _place(data: bytearray, rng: np.random.Generator) -> int:
    """Anywhere, but every second time among the first 512 bytes, where formats keep their headers."""
    return int(rng.integers(min(len(data), 512) if rng.random() < 0.5 else len(data)))


def flip_bits(data: bytearray, rng: np.random.Generator) -> None:
    for _ in range(int(rng.integers(1, 9))):
        data[_place(data, rng)] ^= 1 << int(rng.integers(8))


def overwrite(data: bytearray, rng: np.random.Generator) -> None:
    first, length = _place(data, rng), int(rng.integers(1, 65))
    data[first : first + length] = rng.bytes(len(data[first : first + length]))


def truncate(data: bytearray, rng: np.random.Generator) -> None:
    del data[_place(data, rng) :]


def cut_out(data: bytearray, rng: np.random.Generator) -> None:
    first = _place(data, rng)
    del data[first : first + int(rng.integers(1, 257))]


def repeat(data: bytearray, rng: np.random.Generator) -> None:
    first, to = _place(data, rng), _place(data, rng)
    data[to:to] = data[first : first + int(rng.integers(1, 257))]


def huge_number(data: bytearray, rng: np.random.Generator) -> None:
    """A binary number becomes an extreme one, in either byte order."""
    size = int(rng.choice([2, 4, 8]))
    number = HUGE[int(rng.integers(len(HUGE)))] % 2 ** (8 * size)
    first = _place(data, rng)
    data[first : first + size] = number.to_bytes(size, "little" if rng.random() < 0.7 else "big")


def huge_text(data: bytearray, rng: np.random.Generator) -> None:
    """A number written in digits becomes an extreme one."""
    found = list(re.finditer(rb"\d+", bytes(data[:4096])))
    if found:
        where = found[int(rng.integers(len(found)))]
        data[where.start() : where.end()] = TEXTS[int(rng.integers(len(TEXTS)))]


MUTATORS: tuple[Callable[[bytearray, np.random.Generator], None], ...] = (
    flip_bits,
    overwrite,
    truncate,
    cut_out,
    repeat,
    huge_number,
    huge_text,
)


def mutate(data: bytes, rng: np.random.Generator, strangers: list[bytes]) -> bytes:
    """One to three kinds of damage; now and then a piece of, or the whole of, a file of another kind."""
    if rng.random() < 0.05:
        return strangers[int(rng.integers(len(strangers)))]
    if data.startswith(b"PK") and rng.random() < 0.6:
        return _rezipped(data, rng, strangers)
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        if not out:
            break
        if rng.random() < 0.1:  # a splice
            other, to = strangers[int(rng.integers(len(strangers)))], _place(out, rng)
            first = int(rng.integers(max(1, len(other))))
            out[to : to + 64] = other[first : first + 64]
        else:
            MUTATORS[int(rng.integers(len(MUTATORS)))](out, rng)
    return bytes(out)


def _rezipped(data: bytes, rng: np.random.Generator, strangers: list[bytes]) -> bytes:
    """An archive whose checksums are right, with one damaged member."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = sorted(members)[int(rng.integers(len(members)))]
    members[chosen] = mutate(members[chosen], rng, strangers)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED if rng.random() < 0.5 else zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return packed.getvalue()


def damaged_copy(source: Path, target: Path, rng: np.random.Generator, strangers: list[bytes]) -> None:
    """Write a damaged copy of a file, or of a folder with one of its files damaged, lost or exchanged."""
    if not source.is_dir():
        target.write_bytes(mutate(source.read_bytes(), rng, strangers))
        return
    shutil.copytree(source, target)
    files = sorted(f for f in target.rglob("*") if f.is_file())
    about = [f for f in files if f.name.endswith(METADATA)]
    one = (about or files) if rng.random() < 0.6 else files
    chosen = one[int(rng.integers(len(one)))]
    fate = rng.random()
    if fate < 0.08:
        chosen.unlink()
    elif fate < 0.16:
        other = files[int(rng.integers(len(files)))]
        chosen.write_bytes(other.read_bytes())
    else:
        chosen.write_bytes(mutate(chosen.read_bytes(), rng, strangers))
