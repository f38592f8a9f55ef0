"""What the crash and fuzz tests found, each in its smallest form."""

import itertools
import struct

import h5py
import numpy as np
import pytest
import tifffile
from small_models import wave_model, waves

from cstformer import CST, CSTError, Samples, load_movie
from cstformer.datasets.calcium.reading import open_recording
from cstformer.models.model_files import WEIGHTS
from cstformer.system import files as files_module
from cstformer.system.files import check_hdf5, check_tiff


def test_one_wrong_bit_in_the_weights_is_noticed(tmp_path):
    wave_model().save(tmp_path / "model")
    path = tmp_path / "model" / WEIGHTS
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CSTError, match="its numbers are not those that were written"):
        CST.load(tmp_path / "model")


def test_weights_without_a_checksum_are_still_read(tmp_path):
    from safetensors.torch import load_file, save_file

    wave_model().save(tmp_path / "model")
    path = tmp_path / "model" / WEIGHTS
    save_file(load_file(path), path)
    assert np.array_equal(CST.load(tmp_path / "model").predict(waves(), [3.0]), wave_model().predict(waves(), [3.0]))


# A heap of texts without end. The library's own reading of the damaged file is not tried: it would never return.


@pytest.fixture
def texts(tmp_path):
    """An HDF5 file with texts in a heap, and where its heap begins."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["frames"] = np.zeros((4, 3, 3), "u1")
        file.attrs["note"] = "a text of some length"
    path = tmp_path / "a.h5"
    return path, path.read_bytes().index(b"GCOL")


def entry(data: bytes, heap: int, number: int) -> int:
    """Where entry ``number`` of a heap begins."""
    place = heap + 16
    while struct.unpack_from("<H", data, place)[0] != number:
        place += 16 + 8 * -(-struct.unpack_from("<Q", data, place + 8)[0] // 8)
    return place


def test_a_healthy_heap_is_accepted(texts):
    check_hdf5(texts[0])
    assert open_recording(texts[0], rate=1.0, wavelengths=(575,)).channels[575].frames.shape == (4, 3, 3)


@pytest.mark.parametrize(("number", "size"), [(0, 0), (1, 2**64 - 16), (1, 2**40), (0, 2**63)])
def test_an_endless_heap_is_refused(texts, number, size):
    path, heap = texts
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, entry(data, heap, number) + 8, size)
    path.write_bytes(data)
    for read in (check_hdf5, lambda p: open_recording(p, rate=1.0)):
        with pytest.raises(CSTError, match=f"a.h5: the string heap at byte {heap} is damaged"):
            read(path)


# Pages in a circle


@pytest.mark.parametrize(("bigtiff", "order"), itertools.product([False, True], "<>"))
def test_pages_in_a_circle_are_refused(tmp_path, bigtiff, order):
    path = tmp_path / "a.tif"
    frames = np.arange(5 * 4 * 3, dtype="u1").reshape(5, 4, 3)
    with tifffile.TiffWriter(path, bigtiff=bigtiff, byteorder=order) as writer:
        for frame in frames:
            writer.write(frame, photometric="minisblack", contiguous=False, metadata=None)
    check_tiff(path)
    assert np.array_equal(load_movie(path)[0], frames)
    with tifffile.TiffFile(path) as file:
        pages = [page.offset for page in file.pages]
    count, link = ("Q", "Q") if bigtiff else ("H", "I")
    data = bytearray(path.read_bytes())
    tags = struct.unpack_from(order + count, data, pages[3])[0]
    struct.pack_into(order + link, data, pages[3] + struct.calcsize(count) + (20 if bigtiff else 12) * tags, pages[1])
    path.write_bytes(data)
    for read in (load_movie, lambda p: open_recording(p, rate=1.0, wavelengths=(575,))):
        with pytest.raises(CSTError, match="page 4 leads back to an earlier one; the file is damaged"):
            read(path)


def test_a_damaged_piece_of_a_recording_names_its_file(tmp_path):
    import zarr

    frames = np.random.default_rng(0).integers(0, 255, (6, 4, 4)).astype("u1")
    zarr.open_group(tmp_path / "a.zarr", mode="w").create_array("frames", data=frames, chunks=(3, 4, 4))
    piece = next(f for f in (tmp_path / "a.zarr/frames/c").rglob("*") if f.is_file())
    recording = open_recording(tmp_path / "a.zarr", rate=1.0, wavelengths=(575,))
    piece.write_bytes(b"torn")
    with pytest.raises(CSTError, match=r"cannot read .*a\.zarr as Zarr"):
        recording.channels[575].frames.compute(scheduler="synchronous")


def test_samples_of_more_rows_than_memory_are_refused_before_they_are_read(tmp_path, monkeypatch):
    waves().save(tmp_path / "a.parquet")
    monkeypatch.setattr(files_module, "memory_left", lambda: 100)
    assert len(Samples.load(tmp_path / "a.parquet")) == 6  # a megabyte is always allowed
    Samples(np.linspace(0, 1, 50_000), np.zeros((1, 50_000, 3))).save(tmp_path / "b.parquet")
    with pytest.raises(CSTError, match=r"b.parquet declares 2,000,000 bytes of arrays, but only 100 bytes of memory"):
        Samples.load(tmp_path / "b.parquet")
