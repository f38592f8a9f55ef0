"""Read Navier–Stokes solutions lazily, as frames or `Samples`, from our Zarr group or the published ``.mat`` file."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.datasets.matlab5 import is_matlab5, read_matlab5
from cstformer.datasets.navier_stokes import MOST_SOLUTIONS, MOST_TIMES, VISCOSITY, Law, law_of, members_of
from cstformer.errors import CSTError, unknown
from cstformer.system.files import MAX_BYTES, check_bytes, check_hdf5, readable
from cstformer.system.zarr_files import open_zarr


def is_navier_stokes(path: str | os.PathLike[str]) -> bool:
    """Whether `Solutions` reads this file: a group that `make_navier_stokes` wrote, or a ``.mat`` file."""
    source = Path(path)
    return source.suffix.lower() == ".mat" or (source.suffix == ".zarr" and law_of(source) is not None)


class Solutions:
    """Solutions in a file that `make_navier_stokes` wrote, or in the published ``.mat`` file (variable ``u``).

    Opening reads only the shape and the times; `frames` and `samples` read the rest. A ``.mat`` file older than version
    7.3 is read whole at once.

    Attributes
    ----------
    shape : (N, T, nx, ny).
    times : (T,).
    """

    shape: tuple[int, int, int, int]
    times: Float[np.ndarray, " T"]
    _read: Callable[[np.ndarray, np.ndarray], np.ndarray]

    def __init__(self, path: str | os.PathLike[str], max_bytes: int = MAX_BYTES) -> None:
        self.path = Path(path)
        self.about = ""
        with readable(path, "Navier–Stokes solutions") as source:
            if source.suffix == ".zarr":
                self._open_zarr(source)
            elif source.suffix.lower() == ".mat":
                if is_matlab5(source):
                    self._open_matlab(read_matlab5(source, ("u", "t"), max_bytes))
                else:  # version 7.3 is HDF5
                    self._open_hdf5(source)
            else:
                raise unknown("kind of Navier–Stokes file", source.suffix, [".zarr", ".mat"])

    def _open_zarr(self, path: Path) -> None:
        if (found := law_of(path)) is None:
            raise CSTError("this is no Navier–Stokes set; make one by `cst data make navier-stokes`")
        law = Law(**found)
        group = open_zarr(path)
        array, shape = group["vorticity"], (law.samples, len(law.times), law.size, law.size)
        if array.shape != shape or group["finished"].shape != (law.blocks,):
            raise CSTError(f"its arrays do not have the shape {shape} of its law; the file is damaged")
        finished = np.flatnonzero(group["finished"][:])
        if len(finished) < law.blocks:
            done = sum(len(members_of(int(block), law)) for block in finished)
            raise CSTError(f"only {done} of {law.samples} solutions are made; run the command that made it again")
        self.shape, self.times = shape, law.times
        self.about = f", ν = {VISCOSITY:g}, amplitude {law.amplitude}, seed {law.seed}"
        self._read = lambda rows, at: np.asarray(array.oindex[rows, at])

    def _open_hdf5(self, path: Path) -> None:
        import h5py

        check_hdf5(path)
        with h5py.File(path, "r") as file:
            # MATLAB stores the first axis fastest, so HDF5 sees (T, ny, nx, N).
            shape = file["u"].shape if "u" in file else ()
            few = "t" in file and file["t"].size == math.prod(shape[:1])
            self._describe(shape[::-1], np.asarray(file["t"]) if few else None)

        def read(rows: np.ndarray, at: np.ndarray) -> np.ndarray:
            first, last = rows.min(), rows.max() + 1
            with h5py.File(path, "r") as file:
                frames = [file["u"][int(t), :, :, first:last][..., rows - first] for t in at]
            return np.stack(frames).transpose(3, 0, 2, 1)

        self._read = read

    def _open_matlab(self, arrays: dict[str, np.ndarray]) -> None:
        u = arrays.get("u", np.zeros(0))
        self._describe(u.shape, arrays.get("t"))
        self._read = lambda rows, at: np.moveaxis(u[rows][..., at], -1, 1)

    def _describe(self, shape: tuple[int, ...], times: np.ndarray | None) -> None:
        """Set the shape, from that of u (N, nx, ny, T), and the times; 1, 2, 3… if there are not T of them."""
        if len(shape) != 4:
            raise CSTError(f"the variable u must be (N, nx, ny, T), got {shape or 'none'}")
        N, nx, ny, T = shape
        if N > MOST_SOLUTIONS or T > MOST_TIMES:
            raise CSTError(f"the variable u is {shape}, which no file holds; it is damaged")
        self.shape = (N, T, nx, ny)
        fits = times is not None and np.size(times) == T
        self.times = np.ravel(times).astype(float) if fits else np.arange(1.0, T + 1)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self.shape[0]

    def describe(self) -> str:
        """Readable summary of two lines."""
        N, T, nx, ny = self.shape
        first = self.frames([0])
        return (
            f"Navier–Stokes: {N} solutions of {T} frames of {nx} × {ny}{self.about}\n"
            f"times {self.times[0]:g} to {self.times[-1]:g}; vorticity of solution 0: {first.min():.4g} to "
            f"{first.max():.4g}, sd {first[0, 0].std():.3g} at first, {first[0, -1].std():.3g} at last"
        )

    def frames(self, dynamics: Any = None, times: ArrayLike | None = None) -> Float[np.ndarray, "n T nx ny"]:
        """Vorticity of chosen solutions (an index, a slice, a list; all by default) at chosen times.

        ``times`` must be among `self.times`: (T,) for all solutions, or (n, T) with one row per solution.
        """
        rows = self._rows(dynamics)
        at = self._places(times, len(rows))
        if at.ndim == 1:
            return self._chosen(rows, at)
        every, place = np.unique(at, return_inverse=True)
        found = self._chosen(rows, every)
        return np.take_along_axis(found, place.reshape(at.shape)[:, :, None, None], axis=1)

    def samples(self, dynamics: Any = None, times: ArrayLike | None = None, patch: tuple[int, int] = (8, 8)) -> Samples:
        """The same frames as patch tokens (t, row, col); each solution is a sample whose id is its index."""
        rows, frames = self._rows(dynamics), self.frames(dynamics, times)[..., None]
        clock = self.times[self._places(times, len(rows))]
        groups = [(frames, clock)] if clock.ndim == 1 else zip(frames[:, None], clock, strict=True)
        tokens = Samples.concatenate(
            [frames_to_samples(movie, patch, times=t, time_unit="1", periodic=True) for movie, t in groups]
        )
        return tokens.replace(sample_ids=[int(row) for row in rows])

    def _chosen(self, rows: np.ndarray, at: np.ndarray) -> np.ndarray:
        with readable(self.path, "Navier–Stokes solutions"):
            check_bytes(self.path, 4 * len(rows) * len(at) * self.shape[2] * self.shape[3])
            return self._read(rows, at)

    def _rows(self, dynamics: Any) -> Int[np.ndarray, " n"]:
        try:
            rows = np.atleast_1d(np.arange(len(self))[slice(None) if dynamics is None else dynamics])
        except (IndexError, TypeError) as error:
            raise CSTError(f"dynamics {dynamics!r} do not fit {len(self)} solutions: {error}") from error
        if rows.ndim != 1 or not len(rows):
            raise CSTError(f"dynamics {dynamics!r} choose none of the {len(self)} solutions")
        return rows

    def _places(self, times: ArrayLike | None, n: int) -> np.ndarray:
        """Indices of the times, (T,) or (n, T)."""
        wanted = self.times if times is None else as_floats("times", times)
        if wanted.ndim not in (1, 2) or not wanted.size or (wanted.ndim == 2 and len(wanted) != n):
            raise CSTError(f"times must be (T,) or ({n}, T), a row for each solution, got shape {wanted.shape}")
        place = np.abs(wanted[..., None] - self.times).argmin(axis=-1)
        wrong = ~np.isclose(self.times[place], wanted, rtol=0, atol=1e-6)
        if wrong.any():
            raise CSTError(
                f"there is no frame at time {wanted[wrong][0]:g}; the file has {len(self.times)} times from "
                f"{self.times[0]:g} to {self.times[-1]:g}"
            )
        return place
