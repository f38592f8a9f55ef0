"""Samples in files of every kind."""

import io
import json
import subprocess
import sys
import zipfile

import numpy as np
import pytest

from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning
from cstformer.system.files import read_npz

NAN = np.nan


SUFFIXES = (".npz", ".csv", ".tsv", ".parquet", ".nc", ".zarr")


def ragged(ids=("mouse 1", "mouse 2")) -> Samples:
    """Ragged samples with a missing channel, names, units and numbers that need all their digits."""
    return Samples.from_list(
        [
            ([[0.1, 1 / 3], [0.7, 2e-17]], [[np.pi, NAN], [-1e300, 2.0]]),
            ([[0.2, 5.0], [0.1, 6.0], [3.0, 7.0]], [[1.0, 2.0], [NAN, 4.0], [5.0, 6.0]]),
        ],
        coord_names=["t", "x"],
        value_names=["u[0]", "speed"],
        sample_ids=ids,
        units={"t": "hours since onset", "speed": "m s-1", "u[0]": "seconds"},
    )


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("ids", [("mouse 1", "mouse 2"), (12, 7), ("007", "NA1")])
def test_round_trip(tmp_path, suffix, ids):
    s = ragged(ids)
    s.save(tmp_path / f"x{suffix}")
    s.save(tmp_path / f"x{suffix}")  # replaces the first
    assert [f.name for f in tmp_path.iterdir()] == [f"x{suffix}"]
    back = Samples.load(str(tmp_path / f"x{suffix}"))
    assert back.equals(s)
    assert back.units == s.units and back.value_names == s.value_names and back.sample_ids == ids


@pytest.mark.parametrize("suffix", [".npz", ".nc", ".zarr"])
def test_origin_and_layout_survive(tmp_path, suffix):
    movie = np.arange(6 * 3 * 4, dtype=float).reshape(6, 3, 4)
    s = frames_to_samples(movie, (2, 2), window=3, times=np.arange(6) / 7)
    s.save(tmp_path / f"x{suffix}")
    back = Samples.load(tmp_path / f"x{suffix}")
    assert back.equals(s) and back.layout == s.layout and np.array_equal(back.origin, s.origin)


def test_tables_say_what_they_lose(tmp_path):
    with pytest.warns(CSTWarning, match="keeps neither the origin"):
        Samples([0, 1, 2], [[1, 2, 3]], origin=[[5]]).save(tmp_path / "x.csv")


def test_in_memory_round_trips():
    s = ragged()
    assert Samples.from_frame(s.to_frame()).equals(s)
    assert Samples.from_xarray(s.to_xarray()).equals(s)
    table = s.to_frame()
    assert list(table.columns) == [
        "sample",
        "t [hours since onset]",
        "x",
        "u[0] [seconds]",
        "speed [m s-1]",
    ]
    assert len(table) == 5 and np.isnan(table["speed [m s-1]"][0])


def test_plain_npz(tmp_path):
    np.savez(tmp_path / "x.npz", coords=np.arange(3.0)[:, None], values=np.ones((2, 3, 1), dtype="f4"))
    s = Samples.load(tmp_path / "x.npz")
    assert s.coords[1, :, 0].tolist() == [0, 1, 2] and s.coord_names == ("t",)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    with pytest.raises(CSTError, match="there is no such file"):
        Samples.load(path)
    if suffix == ".zarr":
        path.mkdir()
        with pytest.raises(CSTError, match="cannot read"):
            Samples.load(path)
        return
    path.write_bytes(b"\x00\xff just some text")
    with pytest.raises(CSTError, match=f"{path.name}"):
        Samples.load(path)
    if suffix not in (".csv", ".tsv"):  # a table cut at the end is still a table
        ragged().save(path)
        path.write_bytes(path.read_bytes()[:-200])
        with pytest.raises(CSTError, match="cannot read"):
            Samples.load(path)


def test_wrong_suffix():
    with pytest.raises(CSTError, match=r"unknown kind of file .* '.npx'; samples are in .npz, .csv"):
        Samples.load("x.npx")
    with pytest.raises(CSTError, match="unknown kind of file"):
        ragged().save("x")


def member(shape: str, descr: str = "<f8", data: bytes = b"") -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}}}".encode()
    header += b" " * (-(10 + len(header) + 1) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def test_npz_refused(tmp_path):
    path = tmp_path / "x.npz"

    def write(**members: bytes) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                archive.writestr(name.replace("__", "."), content)

    cases = [
        (
            {"coords__npy": member("(99999999, 99999)")},
            "should take .* bytes but has 128; the file is damaged",
        ),
        ({"coords__npy": member("(3,)", "|O", b"x" * 24)}, "holds Python objects"),
        ({"readme__txt": b"hello"}, "is not a NumPy array"),
        ({"coords__npy": b"hello"}, "cannot read"),
    ]
    for members, message in cases:
        write(**members)
        with pytest.raises(CSTError, match=message):
            Samples.load(path)
    np.savez(path, coords=np.ones(3), other=np.ones(3))
    with pytest.raises(CSTError, match=r"must have the keys coords and values, .* but has: coords, other"):
        Samples.load(path)
    good = {"coords": np.ones(3), "values": np.ones((1, 3))}
    np.savez(path, **good)
    with pytest.raises(CSTError, match="48 bytes of arrays, more than max_bytes=47"):
        Samples.load(path, max_bytes=47)
    with pytest.raises(CSTError, match=r"an .npz has fixed keys"):
        Samples.load(path, coords=["t"])
    for meta in ("{", "[1]", '{"colour": 1}', '{"layout": {"frame": 1}}', '{"units": {"w": "m"}}'):
        np.savez(path, meta=np.array(meta), **good)
        with pytest.raises(CSTError, match=r"x.npz"):
            Samples.load(path)


def test_zip_bomb_is_refused_without_memory(tmp_path):
    """A small file that unpacks to 64 MB, declared honestly, is refused by its declared size."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("values.npy", member("(8000000,)", data=bytes(64_000_000)))
    path = tmp_path / "bomb.npz"
    path.write_bytes(buffer.getvalue())
    assert path.stat().st_size < 100_000
    with pytest.raises(CSTError, match="declares 64,000,000 bytes"):
        read_npz(path, max_bytes=10**6)


def test_large_netcdf_is_refused(tmp_path):
    ragged().save(tmp_path / "x.nc")
    with pytest.raises(CSTError, match="more than max_bytes=10"):
        Samples.load(tmp_path / "x.nc", max_bytes=10)


@pytest.mark.parametrize(("module", "suffix"), [("pyarrow", ".parquet"), ("netCDF4", ".nc"), ("zarr", ".zarr")])
def test_missing_library(tmp_path, module, suffix):
    """A fresh process, because xarray and pandas remember which engines they found."""
    path = tmp_path / f"x{suffix}"
    ragged().save(path)
    code = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from cstformer.data.samples import Samples\nfrom cstformer.errors import CSTError\n"
        f"path = {str(path)!r}\n"
        "for act in (lambda: Samples.load(path), lambda: Samples([0], [[1]]).save(path)):\n"
        "    try:\n        act()\n    except CSTError as error:\n        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.count('pip install "cstformer[files]"') == 2, done.stdout


def test_save_reports_what_the_library_refuses(tmp_path):
    with pytest.raises(CSTError, match=r"cannot write .*x.nc"):
        Samples([0], [[1]], value_names=["a/b"]).save(tmp_path / "x.nc")
    assert not list(tmp_path.iterdir())


def test_meta_is_plain_json(tmp_path):
    ragged().save(tmp_path / "x.npz")
    meta = json.loads(str(read_npz(tmp_path / "x.npz")["meta"]))
    assert meta["coord_names"] == ["t", "x"] and meta["origin"] == [[0, 0], [0, 0]] and meta["layout"] is None
