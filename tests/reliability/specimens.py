"""One small healthy file of every kind that the package reads, and how it is read to the end."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from recordings import write_svd
from small_models import blob, fit_quickly, waves

from cstformer import CST, Samples, load_movie
from cstformer.data.clocks import load_times
from cstformer.data.queries import load_queries
from cstformer.datasets.calcium.reading import open_recording
from cstformer.datasets.navier_stokes import Law, make_navier_stokes
from cstformer.datasets.navier_stokes_reader import Solutions
from cstformer.datasets.video_files import find_recordings

FRAMES = (blob(6, 4, 5)).astype(np.uint8)
TIMES = np.arange(6) / 10
SETTINGS = {"steps": 2, "width": 4, "heads": 1, "layers": 1, "feedforward": 4, "features": 2, "order": 0}


def _movie(path: Path) -> None:
    load_movie(path)


def _recording(path: Path) -> None:
    for channel in open_recording(path, wavelengths=(575, 395), rate=20.0).channels.values():
        channel.frames.compute(scheduler="synchronous")


def _solutions(path: Path) -> None:
    Solutions(path).describe()


def _video(path: Path) -> None:
    for _, count, frames in find_recordings(path):
        for frame in frames(0, count):
            assert frame.dtype == np.uint8


def _queries(path: Path) -> None:
    load_queries(path, waves())


def _state(path: Path) -> None:
    fit_quickly(CST.preset("smoke", **SETTINGS), waves(), state=path)


def _spirals(folder: Path) -> None:
    waves().save(folder / "samples.npz")
    np.savez(folder / "queries.npz", coords=np.linspace(2, 4, 5))
    for suffix in ("csv", "nc", "zarr"):
        waves(3, 4).save(folder / f"samples.{suffix}")
    waves(3, 4).to_frame().to_parquet(folder / "samples.parquet", index=False, compression=None)


def _models(folder: Path) -> None:
    fit_quickly(CST.preset("smoke", **SETTINGS), waves(), state=folder / "state.training").save(folder / "model")


def _arrays(folder: Path) -> None:
    import h5py
    import scipy.io
    import tifffile
    import xarray as xr
    import zarr

    np.save(folder / "movie.npy", FRAMES)
    np.stack([FRAMES, FRAMES], axis=1).tofile(folder / "raw_2_4_5_uint8.dat")
    (folder / "components").mkdir()
    write_svd(folder / "components", colours=2)
    (folder / "components" / "info.json").write_text('{"n_channels": 2, "frame_rate": 10.0}')
    np.save(folder / "components" / "frames_average.npy", np.ones((2, 5, 4)))
    (folder / "times.csv").write_text("frame,time [ms]\n" + "".join(f"{i},{100 * i}\n" for i in range(6)))
    tifffile.imwrite(folder / "movie.tif", FRAMES, photometric="minisblack")
    tifffile.imwrite(folder / "packed.tif", FRAMES, photometric="minisblack", compression="zlib", rowsperstrip=2)
    xr.Dataset({"u": (("time", "row", "col"), FRAMES.astype("f4"))}, {"time": TIMES}).to_netcdf(folder / "movie.nc")
    group = zarr.open_group(folder / "recording.zarr", mode="w")
    group.create_array("frames", data=FRAMES, chunks=(3, 4, 5))
    group.create_array("times", data=TIMES)
    for suffix in ("h5", "mat"):
        with h5py.File(folder / f"recording.{suffix}", "w") as file:
            file["frames"], file["times"] = FRAMES, TIMES
            file.create_dataset("packed/mask", data=FRAMES[0] > 0, compression="gzip")
    u = blob(4, 8, 8).transpose(1, 2, 0)[None].astype("f4")
    scipy.io.savemat(folder / "solutions5.mat", {"u": u, "t": np.arange(4.0)}, do_compression=False)
    with h5py.File(folder / "solutions7.mat", "w", userblock_size=512) as file:
        file["u"], file["t"] = u.T, np.arange(4.0)
    with (folder / "solutions7.mat").open("r+b") as stream:  # the header by which MATLAB knows its files
        stream.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
    make_navier_stokes(folder / "solutions.zarr", Law(2, 2.0, 1.0, 8, step=0.5), jobs=1, progress=False)


def _videos(folder: Path) -> None:
    import av
    import h5py
    from PIL import Image

    colours = np.repeat(FRAMES[..., None], 3, -1)
    np.savez(folder / "video.npz", drive=colours)
    with h5py.File(folder / "X_drive.hkl", "w") as file:
        file["data_0"] = colours
    with h5py.File(folder / "sources_drive.hkl", "w") as file:
        file["data_0"] = np.array([b"drive one"] * 3 + [b"drive two"] * 3)
    for suffix in ("png", "jpg"):
        (folder / f"{suffix}s").mkdir()
        Image.fromarray(colours[0]).save(folder / f"{suffix}s" / f"0.{suffix}")
    with av.open(folder / "film.mp4", "w") as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 16, "yuv420p"
        for frame in np.resize(colours, (6, 16, 32, 3)):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def _nwb(folder: Path) -> None:
    import pynwb

    start = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    nwb = pynwb.NWBFile("specimen", "one", start)
    device = nwb.create_device("camera")
    channel = pynwb.ophys.OpticalChannel(name="green", description="emission", emission_lambda=500.0)
    about = {"description": "x", "excitation_lambda": 575.0, "indicator": "jRGECO", "location": "cortex"}
    plane = nwb.create_imaging_plane(name="plane", optical_channel=channel, device=device, **about)
    nwb.add_acquisition(
        pynwb.ophys.OnePhotonSeries(name="frames", data=FRAMES, imaging_plane=plane, rate=10.0, unit="counts")
    )
    with pynwb.NWBHDF5IO(folder / "recording.nwb", "w") as io:
        io.write(nwb, cache_spec=False)


READERS: dict[str, Callable[[Path], Any]] = {
    "samples.npz": Samples.load,
    "samples.csv": Samples.load,
    "samples.parquet": Samples.load,
    "samples.nc": Samples.load,
    "samples.zarr": Samples.load,
    "queries.npz": _queries,
    "movie.npy": _movie,
    "movie.tif": _movie,
    "packed.tif": _recording,
    "raw_2_4_5_uint8.dat": _recording,
    "components": _recording,
    "times.csv": load_times,
    "movie.nc": _movie,
    "recording.zarr": _recording,
    "recording.h5": _recording,
    "recording.mat": _recording,
    "recording.nwb": _recording,
    "solutions5.mat": _solutions,
    "solutions7.mat": _solutions,
    "solutions.zarr": _solutions,
    "video.npz": _video,
    "X_drive.hkl": _video,
    "pngs": _video,
    "jpgs": _video,
    "film.mp4": _video,
    "model": CST.load,
    "state.training": _state,
}


def write_specimens(folder: Path) -> None:
    """Write all of them; every reader must read its own."""
    for write in (_spirals, _models, _arrays, _videos, _nwb):
        write(folder)
