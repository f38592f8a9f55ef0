"""An HDF5 file may name other files as the place of its data: no reader shows what they hold."""

import h5py
import numpy as np
import pytest
from small_models import blob

from cstformer import CSTError, LazyFrames, Samples, load_movie
from cstformer.data.movie_formats import open_arrays
from cstformer.datasets.calcium.reading import open_recording
from cstformer.datasets.navier_stokes_reader import Solutions
from cstformer.datasets.video_files import find_recordings

SECRET = b"-----BEGIN PRIVATE KEY-----".ljust(4 * 8 * 8, b"!")
SHAPE = (4, 8, 8)


def external(file, name, folder):
    file.create_dataset(name, SHAPE, "u1", external=[(str(folder / "secret"), 0, len(SECRET))])


def virtual(file, name, folder):
    layout = h5py.VirtualLayout(SHAPE, "u1")
    layout[...] = h5py.VirtualSource(str(folder / "other.h5"), "frames", SHAPE, "u1")
    file.create_virtual_dataset(name, layout)


def link(file, name, folder):
    file[name] = h5py.ExternalLink(str(folder / "other.h5"), "frames")


READERS = {
    "load_movie.h5": load_movie,
    "lazy.h5": LazyFrames,
    "arrays.hdf5": open_arrays,
    "matlab.mat": open_arrays,
    "recording.mat": lambda path: open_recording(path, wavelengths=(575, 395), rate=20.0),
    "session.nwb": load_movie,
    "grid.nc": Samples.load,
    "movie.nc": load_movie,
    "solutions.mat": Solutions,
    "X_video.hkl": lambda path: list(find_recordings(path)),
}


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("elsewhere", [external, virtual, link], ids=lambda f: f.__name__)
@pytest.mark.parametrize("group", ["", "deep/er/"], ids=["top", "nested"])
def test_data_in_other_files_are_refused(tmp_path, name, elsewhere, group):
    (tmp_path / "secret").write_bytes(SECRET)
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["frames"] = np.frombuffer(SECRET, np.uint8).reshape(SHAPE)
    h5py.File(tmp_path / "sources_video.hkl", "w").close()
    with h5py.File(tmp_path / name, "w", userblock_size=512) as file:
        file["plain"] = blob(4, 8, 8)
        elsewhere(file, f"{group}frames", tmp_path)
    with pytest.raises(CSTError, match=r"takes its data from other files; copy them into one file") as caught:
        READERS[name](tmp_path / name)
    assert "\n" not in str(caught.value) and name in str(caught.value)


def test_data_inside_the_file_are_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["frames"] = blob(4, 8, 8)
        file["same"] = h5py.SoftLink("/frames")
    np.testing.assert_array_equal(load_movie(tmp_path / "a.h5")[0], blob(4, 8, 8))
