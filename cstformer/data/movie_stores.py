"""Movies that are written piece by piece, as Zarr or TIFF: an empty movie first, then frames in any order.

Several processes may write different blocks of frames at the same time.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Float

from cstformer.system.atomic import fsync
from cstformer.system.zarr_files import open_zarr

MARK = "cstformer_movie"
"""Attribute of the Zarr groups that `create_movie` makes."""
STREAMED = (".zarr", ".tif", ".tiff")
"""Kinds of file that can be written piece by piece."""
CLASSIC_TIFF_BYTES = 2**32 - 2**25
"""Largest movie in a TIFF that ImageJ opens: offsets have 32 bits, and the tags need some room."""


def create_movie(
    path: Path, shape: tuple[int, ...], times: Float[np.ndarray, " T"], block: int, dtype: str = "float32"
) -> None:
    """Make an empty movie (T, H, W) or (T, H, W, C).

    Parameters
    ----------
    path : `.zarr`, a group with ``frames`` and ``time``, which xarray reads; or `.tif`, float32 whatever ``dtype`` is.
    times : seconds of the frames; in a TIFF, labels keep them.
    block : frames in a chunk of Zarr. Two processes must not write to one chunk at the same time.
    """
    if path.suffix.lower() != ".zarr":
        _create_tiff(path, shape, times)
        return
    import zarr

    group = zarr.create_group(path, zarr_format=3, attributes={MARK: "frames of cst predict"})
    dims = ("time", "row", "col", "channel")[: len(shape)]
    chunks = (min(block, shape[0]), *shape[1:])
    group.create_array("frames", shape=shape, dtype=dtype, chunks=chunks, fill_value=np.nan, dimension_names=dims)
    group.create_array("time", data=np.ascontiguousarray(times), dimension_names=("time",))


def write_frames(path: Path, first: int, frames: Float[np.ndarray, "t H W *C"]) -> None:
    """Put frames into a movie of `create_movie`, from frame number ``first`` on; they are on disk when it returns."""
    if path.suffix.lower() == ".zarr":
        movie = open_zarr(path, writable=True)["frames"]
        movie[first : first + len(frames)] = frames
        for chunk in range(first // movie.chunks[0], -(-(first + len(frames)) // movie.chunks[0])):
            for stored in (path / "frames/c" / str(chunk)).rglob("*"):
                if stored.is_file():
                    fsync(stored)
        return
    import tifffile

    with tifffile.TiffFile(path) as tiff:
        offset, dtype = tiff.series[0].dataoffset, np.dtype(f"{tiff.byteorder}f4")
    pages = (frames if frames.ndim == 3 else np.moveaxis(frames, -1, 1)).astype(dtype)
    # Not through a memory map: on a full disk, that would end the process.
    with path.open("r+b") as stream:
        stream.seek(offset + first * pages[0].nbytes)
        stream.write(np.ascontiguousarray(pages).data)
    fsync(path)


def _create_tiff(path: Path, shape: tuple[int, ...], times: Float[np.ndarray, " T"]) -> None:
    """Grey frames as TYX or TCYX. Labels keep the time of each frame; ``finterval`` is the step if there is one."""
    import tifffile

    axes = "TYX" if len(shape) == 3 else "TCYX"
    pages = shape if len(shape) == 3 else (shape[0], shape[3], *shape[1:3])
    if 4 * np.prod(pages) > CLASSIC_TIFF_BYTES:
        about = {"axes": axes, "times": times.tolist()}
        tifffile.imwrite(path, shape=pages, dtype="f4", bigtiff=True, photometric="minisblack", metadata=about)
        return
    channels = pages[1] if len(pages) == 4 else 1
    labels = [f"t={t!r} s" for t in times.tolist() for _ in range(channels)]
    steps = np.diff(times)
    even = len(steps) > 0 and steps[0] > 0 and np.allclose(steps, steps[0], rtol=1e-6)
    interval = {"finterval": float(steps[0])} if even else {}
    about = {"axes": axes, "Labels": labels, **interval}
    tifffile.imwrite(path, shape=pages, dtype="f4", imagej=True, metadata=about)
