"""Small files that claim to be huge: refused, in a process with 1 GB to spare, and without taking a tenth of it."""

import io
import json
import struct
import zipfile
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from processes import starved
from small_models import blob, wave_model

from cstformer import CST, CSTError, LazyFrames, Samples, load_movie
from cstformer.datasets.calcium.reading import open_recording
from cstformer.datasets.navier_stokes_reader import Solutions
from cstformer.datasets.video_files import find_recordings
from cstformer.explorer.files import MAX_ARRAYS
from cstformer.models.model_files import DESCRIPTION, WEIGHTS
from cstformer.system.files import check_bytes
from cstformer.system.memory import memory_left

GB = 2**30


def read_samples(path: Path) -> None:
    Samples.load(path)


def read_movie(path: Path) -> None:
    load_movie(path)


def read_recording(path: Path) -> None:
    for channel in open_recording(path, wavelengths=(575, 395), rate=20.0).channels.values():
        channel.frames.mean().compute(scheduler="synchronous")


def read_solutions(path: Path) -> None:
    Solutions(path).describe()


def read_video(path: Path) -> None:
    for _, count, frames in find_recordings(path):
        for _ in frames(0, count):
            pass


def read_model(path: Path) -> None:
    CST.load(path)


def npy(shape: tuple[int, ...], dtype: str = "<f8") -> bytes:
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": dtype, "fortran_order": False, "shape": shape})
    return head.getvalue()


def zip_of_zeros(path: Path) -> None:
    """4 GB of zeros, all sizes in agreement: a bomb that only the free memory can tell."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key in ("coords", "values"):
            with archive.open(f"{key}.npy", "w", force_zip64=True) as stream:
                stream.write(npy((1, 2**28, 1)))
    # The zeros need not be there: what is declared is refused before anything is unpacked.
    data = bytearray(path.read_bytes())
    for key in (b"coords.npy", b"values.npy"):
        place = data.rfind(key) - 46  # in the directory at the end
        length = struct.unpack_from("<I", data, place + 24)[0]
        struct.pack_into("<I", data, place + 24, length + 8 * 2**28)
    path.write_bytes(data)


def short_npy(path: Path) -> None:
    path.write_bytes(npy((10**6, 10**3, 10**3)) + bytes(100))


def hdf5(path: Path, shape: tuple[int, ...], name: str = "frames", small: tuple[int, ...] = (4, 8, 8)) -> None:
    """Arrays of which no piece was ever written: readers fill them in."""
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset(name, shape, "f4", chunks=small)
    if path.suffix == ".mat":
        with path.open("r+b") as stream:
            stream.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")


def zarr_array(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...]) -> None:
    import zarr

    zarr.create_array(path, shape=shape, chunks=chunks, dtype="f4", fill_value=1.0)


def netcdf(path: Path) -> None:
    import netCDF4

    with netCDF4.Dataset(path, "w") as file:
        for name in ("t", "row", "col"):
            file.createDimension(name, 2000)
        file.createVariable("u", "f8", ("t", "row", "col"), zlib=True)


def parquet(path: Path) -> None:
    """Nothing, repeated: a million rows take a few hundred bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = pa.table({"t": pa.nulls(2**20, pa.float64()), "u": pa.nulls(2**20, pa.float64())})
    with pq.ParquetWriter(path, rows.schema) as writer:
        for _ in range(80):
            writer.write_table(rows)


def tiff(path: Path, height: int = 2**20, width: int = 2**20) -> None:
    import tifffile

    tifffile.imwrite(path, blob(3, 4, 4).astype(np.uint8), photometric="minisblack", metadata=None)
    data = bytearray(path.read_bytes())
    place = struct.unpack_from("<I", data, 4)[0]
    while place:  # every page says that it is huge
        count = struct.unpack_from("<H", data, place)[0]
        for i in range(count):
            tag, _, _, _ = struct.unpack_from("<HHII", data, place + 2 + 12 * i)
            if tag in (256, 257):
                struct.pack_into("<HHII", data, place + 2 + 12 * i, tag, 4, 1, width if tag == 256 else height)
        place = struct.unpack_from("<I", data, place + 2 + 12 * count)[0]
    path.write_bytes(data)


def components(path: Path) -> None:
    """A megabyte each, whose product has 2⁴⁰ pixels."""
    path.mkdir()
    np.save(path / "U.npy", np.ones((2**10, 2**10, 1), np.float32))
    np.save(path / "SVT.npy", np.ones((1, 2**20), np.float32))


def short_components(path: Path) -> None:
    path.mkdir()
    (path / "U.npy").write_bytes(npy((2**15, 2**15, 4)) + bytes(100))
    np.save(path / "SVT.npy", np.ones((4, 10), np.float32))


def matlab(path: Path) -> None:
    import scipy.io

    scipy.io.savemat(path, {"u": np.zeros((2, 2, 2, 2))})
    data = path.read_bytes()
    sizes = struct.pack("<4i", 2, 2, 2, 2)
    assert data.count(sizes) == 1
    path.write_bytes(data.replace(sizes, struct.pack("<4i", 2**20, 2**10, 2**10, 2)))


def ragged_table(path: Path) -> None:
    """A quarter of a megabyte: many samples of one point and a long one, which pad to 3 GB."""
    rows = [f"{i},0,1" for i in range(10_000)] + [f"long,{t},1" for t in range(10_000)]
    path.write_text("sample,t,u\n" + "\n".join(rows))


def read_upload_alone(path: Path) -> None:
    """What the explorer does with an upload, whose limit is lower than the memory of this process."""
    Samples.load(path, max_bytes=MAX_ARRAYS)


def small_numbers(path: Path) -> None:
    """Bytes that become float64, with three coordinates each: 50 times what the file declares."""
    import netCDF4

    with netCDF4.Dataset(path, "w") as file:
        for name in ("t", "row", "col"):
            file.createDimension(name, 400)
        file.createVariable("u", "i1", ("t", "row", "col"), zlib=True)


def read_window(path: Path) -> None:
    LazyFrames(path, patch=(8, 8), window=10, stride=5)[[0]]


def picture(path: Path) -> None:
    """A PNG that claims 60 000 × 60 000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    packer = zlib.compressobj(9)
    row = bytes(1 + 60_000 * 3)
    body = b"".join(packer.compress(row) for _ in range(50)) + packer.flush()
    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    path.mkdir()
    parts = (chunk(b"IHDR", head), chunk(b"IDAT", body), chunk(b"IEND", b""))
    (path / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def model_settings(path: Path, **changes: int) -> None:
    wave_model().save(path)
    about = json.loads((path / DESCRIPTION).read_text())
    about["settings"] |= changes
    (path / DESCRIPTION).write_text(json.dumps(about))


def safetensors_header(path: Path) -> None:
    wave_model().save(path)
    header = json.dumps({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (path / WEIGHTS).write_bytes(struct.pack("<Q", len(header)) + header + bytes(64))


BOMBS = {
    "npz of zeros": ("a.npz", zip_of_zeros, read_samples),
    "npz movie": ("a.npz", zip_of_zeros, read_movie),
    "npy": ("a.npy", short_npy, read_movie),
    "npy recording": ("a.npy", short_npy, read_recording),
    "HDF5 frames": ("a.h5", lambda p: hdf5(p, (4, 2**20, 2**20)), read_recording),
    "HDF5 clock": ("a.h5", lambda p: hdf5(p, (2**31, 8, 8)), read_recording),
    "HDF5 endless": ("a.h5", lambda p: hdf5(p, (2**50, 8, 8)), read_recording),
    "MAT v7.3": ("a.mat", lambda p: hdf5(p, (2**40, 64, 64, 2**20), "u", (1, 8, 8, 8)), read_solutions),
    "MAT v5": ("a.mat", matlab, read_solutions),
    "NetCDF": ("a.nc", netcdf, read_samples),
    "NetCDF movie": ("a.nc", netcdf, read_movie),
    "Zarr": ("a.zarr", lambda p: zarr_array(p, (2**20, 2**10, 2**10), (1, 8, 8)), read_movie),
    "Zarr chunk": ("a.zarr", lambda p: zarr_array(p, (8, 2**15, 2**15), (8, 2**15, 2**15)), read_recording),
    "Zarr endless": ("a.zarr", lambda p: zarr_array(p, (2**50, 8, 8), (1, 8, 8)), read_recording),
    "Parquet": ("a.parquet", parquet, read_samples),
    "ragged table": ("a.csv", ragged_table, read_samples),
    "ragged upload": ("a.csv", ragged_table, read_upload_alone),
    "NetCDF of bytes": ("a.nc", small_numbers, read_samples),
    "Zarr window": ("a.zarr", lambda p: zarr_array(p, (100, 2**13, 2**13), (1, 8, 8)), read_window),
    "Zarr window of a chunk": ("a.zarr", lambda p: zarr_array(p, (2**20, 16, 16), (2**20, 16, 16)), read_window),
    "TIFF": ("a.tif", tiff, read_movie),
    "TIFF recording": ("a.tif", tiff, read_recording),
    "TIFF of 1 GB": ("a.tif", lambda p: tiff(p, 2**14, 2**15), read_recording),
    "components": ("svd", components, read_movie),
    "short components": ("svd", short_components, read_recording),
    "PNG": ("pictures", picture, read_video),
    "model of a wide network": ("model", lambda p: model_settings(p, width=2**20, heads=1), read_model),
    "model of a deep network": ("model", lambda p: model_settings(p, layers=10**9), read_model),
    "model of many features": ("model", lambda p: model_settings(p, features=2**40), read_model),
    "safetensors": ("model", safetensors_header, read_model),
}


@pytest.mark.parametrize(("name", "make", "read"), BOMBS.values(), ids=BOMBS)
def test_a_small_file_cannot_take_large_memory(tmp_path, name, make, read):
    make(tmp_path / name)
    size = sum(f.stat().st_size for f in [tmp_path / name, *(tmp_path / name).rglob("*")] if f.is_file())
    assert size < 2**24
    outcome, why, taken = starved(GB, read, tmp_path / name)
    assert outcome == "CSTError", (outcome, why)
    assert name in why
    assert "\n" not in why
    assert taken < GB // 4, f"{taken:,} bytes"


def test_free_memory_is_what_the_process_may_still_take():
    """With 1 GB to spare, 1 GB and a little is refused, and 1 MB less than what is left is not."""
    outcome, left, _ = starved(GB, memory_left)
    assert outcome == "done"
    assert 0.9 * GB < left <= GB
    assert starved(GB, check_bytes, "file", GB + 1)[0] == "CSTError"
    assert starved(GB, check_bytes, "file", GB // 2)[0] == "done"
    with pytest.raises(CSTError, match=r"file declares 1,125,899,906,842,624 bytes of arrays, but only .* are free"):
        check_bytes("file", 2**50, max_bytes=2**60)
