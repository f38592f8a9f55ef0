"""The reader of MATLAB arrays against files that SciPy writes, and files that lie about their lengths."""

import struct

import numpy as np
import pytest
import scipy.io

from cstformer import CSTError
from cstformer.datasets.matlab5 import is_matlab5, read_matlab5

RNG = np.random.default_rng(0)
ARRAYS = {
    "u": RNG.normal(size=(2, 3, 4, 5)),
    "t": np.arange(6.0)[None],
    "single": RNG.normal(size=(3, 2)).astype("f4"),
    "small": np.array([[7]], dtype="u1"),
    "whole": RNG.integers(-9, 9, (4, 4)).astype("i2"),
    "a_long_name_of_more_than_four_letters": np.eye(3),
}


@pytest.mark.parametrize("packed", [False, True])
def test_arrays_come_back_with_their_numbers_and_types(tmp_path, packed):
    path = tmp_path / "a.mat"
    others = {"text": "hello", "cells": np.array([1, "x"], dtype=object), "z": np.array([[1j]]), "s": {"f": 1.0}}
    scipy.io.savemat(path, ARRAYS | others, do_compression=packed, long_field_names=True)
    assert is_matlab5(path)
    found = read_matlab5(path, (*ARRAYS, *others))
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        assert np.array_equal(found[name], array)
    assert read_matlab5(path, ("t",)).keys() == {"t"}


def test_big_endian_and_numbers_that_are_stored_short(tmp_path):
    """MATLAB stores whole doubles as bytes: a double array (class 6) whose numbers are of kind 2, uint8."""
    flags = struct.pack(">4I", 6, 8, 6, 0)
    sizes = struct.pack(">2I2i", 5, 8, 2, 3)
    name = struct.pack(">HH4s", 1, 1, b"u")
    numbers = struct.pack(">2I8B", 2, 6, 1, 2, 3, 4, 5, 250, 0, 0)
    body = flags + sizes + name + numbers
    head = b"MATLAB 5.0 MAT-file".ljust(124) + b"\x01\x00MI"
    (tmp_path / "a.mat").write_bytes(head + struct.pack(">2I", 14, len(body)) + body)
    assert is_matlab5(tmp_path / "a.mat")
    found = read_matlab5(tmp_path / "a.mat", ("u",))["u"]
    assert found.dtype == np.float64
    assert found.tolist() == [[1, 3, 5], [2, 4, 250]]  # column by column


def test_level_4_and_level_7_3_are_something_else(tmp_path):
    scipy.io.savemat(tmp_path / "four.mat", {"u": np.eye(2)}, format="4")
    assert not is_matlab5(tmp_path / "four.mat")
    (tmp_path / "seven.mat").write_bytes(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(400))
    assert not is_matlab5(tmp_path / "seven.mat")
    (tmp_path / "short.mat").write_bytes(b"MATLAB")
    assert not is_matlab5(tmp_path / "short.mat")


@pytest.mark.parametrize("packed", [False, True])
def test_lies_about_lengths_are_refused(tmp_path, packed):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"u": ARRAYS["u"]}, do_compression=packed)
    data = path.read_bytes()
    path.write_bytes(data[:-9])
    with pytest.raises(CSTError, match="is cut off: an array of"):
        read_matlab5(path, ("u",))
    path.write_bytes(data)
    with pytest.raises(CSTError, match="more than max_bytes"):
        read_matlab5(path, ("u",), max_bytes=900)
    if not packed:
        path.write_bytes(data.replace(struct.pack("<4i", 2, 3, 4, 5), struct.pack("<4i", 2, 3, 4, 6)))
        with pytest.raises(CSTError, match=r"the array 'u' of shape \(2, 3, 4, 6\) has 960 bytes of kind 9"):
            read_matlab5(path, ("u",))
