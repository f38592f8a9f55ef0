"""`Samples`: many functions, each observed at its own points; the data that models take and return."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats, first_few, pad, refuse, shaped_coords, shaped_observed
from cstformer.data.grids import samples_from_dataset, samples_to_dataset
from cstformer.data.layout import PatchLayout
from cstformer.data.names import checked_ids, checked_names
from cstformer.data.sample_files import read_samples, samples_suffix, write_samples
from cstformer.data.summary import summary
from cstformer.data.tables import samples_from_table, samples_to_table
from cstformer.errors import CSTError, CSTWarning
from cstformer.system.files import MAX_BYTES, readable


class Samples:
    """N functions R^d -> R^c, each observed at its own n points; shorter ones are padded.

    Parameters
    ----------
    coords : (N, n, d), or (N, n) for d = 1; (n, d) or (n,) when all samples share one grid.
        A two-dimensional array is read as (N, n) whenever it has that shape.
    values : (N, n, c), or (N, n) for c = 1. NaN is a missing value.
    observed : (N, n) or (N, n, c), optional. False is padding or a missing channel.
    coord_names, value_names : names of the axes and of the channels.
    sample_ids : a unique integer or string per sample.
    units : unit of each axis or channel, by name.
    origin : (N, d), what `windows` subtracted from the coordinates; zeros by default.
    layout : how patch tokens tile frames; `frames_to_samples` sets it.

    Attributes
    ----------
    coords, values, observed : float64 (N, n, d), float64 (N, n, c), bool (N, n, c)
        Unobserved values and padding are stored as zeros, so that they can never leak.

    Examples
    --------
    >>> s = Samples([0.0, 0.5, 1.0], [[1.0, 2.0, 3.0], [4.0, np.nan, 6.0]])
    >>> s
    Samples(2 samples of 2-3 points, coordinates t, values value)
    >>> s.coords.shape, s.values.shape, s.point_observed[1].tolist()
    ((2, 3, 1), (2, 3, 1), [True, False, True])
    """

    coords: Float[np.ndarray, "N n d"]
    values: Float[np.ndarray, "N n c"]
    observed: Bool[np.ndarray, "N n c"]
    origin: Float[np.ndarray, "N d"]
    layout: PatchLayout | None

    def __init__(
        self,
        coords: ArrayLike,
        values: ArrayLike,
        observed: ArrayLike | None = None,
        *,
        coord_names: Sequence[str] | None = None,
        value_names: Sequence[str] | None = None,
        sample_ids: Iterable[int | str] | None = None,
        units: Mapping[str, str] | None = None,
        origin: ArrayLike | None = None,
        layout: PatchLayout | None = None,
    ) -> None:
        y = as_floats("values", values)
        y = y[..., None] if y.ndim == 2 else y
        if y.ndim != 3:
            raise CSTError(f"values must have shape (N, n, c) or (N, n), got {y.shape}; one sample is values[None]")
        if 0 in y.shape:
            raise CSTError(f"values must not be empty, got shape {y.shape}; pass at least one sample and point")
        x = shaped_coords(as_floats("coords", coords), y.shape)
        seen = shaped_observed(observed, y.shape) & ~np.isnan(y)
        refuse(np.isinf(y) & seen, "values are infinite", "use NaN for missing values")
        exists = seen.any(axis=-1)
        refuse(~np.isfinite(x).all(axis=-1) & exists, "coords are not finite", "drop those points")
        if not exists.any(axis=1).all():
            raise CSTError(f"no value is observed in sample {first_few(~exists.any(axis=1))}; drop such samples")

        self.coords = np.where(exists[..., None], x, 0.0)
        self.values = np.where(seen, y, 0.0)
        self.observed = seen
        self.coord_names = checked_names("coord_names", coord_names, self.d, "t", "coord")
        self.value_names = checked_names("value_names", value_names, self.c, "value", "value")
        self.sample_ids = checked_ids(sample_ids, len(self))
        self.units = {str(name): str(unit) for name, unit in (units or {}).items() if unit}
        self.layout = layout
        names = self.coord_names + self.value_names
        if both := set(self.coord_names) & set(self.value_names):
            raise CSTError(f"coord_names and value_names share {sorted(both)}; rename one of them")
        if strange := set(self.units) - set(names):
            raise CSTError(f"units names {sorted(strange)}, which are no coordinate or value: {list(names)}")
        self.origin = np.zeros((len(self), self.d)) if origin is None else as_floats("origin", origin) + 0.0
        if self.origin.shape != (len(self), self.d) or not np.isfinite(self.origin).all():
            raise CSTError(f"origin must be finite and (N, d) = {(len(self), self.d)}, got {self.origin.shape}")
        if layout is not None and layout.c != self.c:
            raise CSTError(f"layout has {layout.c} values per token, but values have {self.c} channels")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def n(self) -> int:
        """Points per sample, padding included."""
        return self.values.shape[1]

    @property
    def d(self) -> int:
        """Number of coordinate axes."""
        return self.coords.shape[2]

    @property
    def c(self) -> int:
        """Number of value channels."""
        return self.values.shape[2]

    @property
    def point_observed(self) -> Bool[np.ndarray, "N n"]:
        """True where any channel is observed: the points that are tokens."""
        return np.asarray(self.observed.any(axis=-1))

    def __repr__(self) -> str:
        counts = self.point_observed.sum(axis=1)
        points = f"{counts.min()}" if counts.min() == counts.max() else f"{counts.min()}-{counts.max()}"
        values = ", ".join(self.value_names) if self.c <= 5 else f"{self.value_names[0]}...{self.value_names[-1]}"
        return (
            f"Samples({len(self)} samples of {points} points, "
            f"coordinates {', '.join(self.coord_names)}, values {values})"
        )

    def replace(self, **changes: Any) -> Samples:
        """Copy with some of the constructor arguments changed.

        >>> Samples([0.0, 1.0], [[1.0, 2.0]]).replace(value_names=["u"]).value_names
        ('u',)
        """
        keep = ("coords", "values", "observed", "coord_names", "value_names", "sample_ids", "units", "origin")
        return Samples(**{name: getattr(self, name) for name in (*keep, "layout")} | changes)

    def __getitem__(self, index: Any) -> Samples:
        try:
            chosen = np.atleast_1d(np.arange(len(self))[index])
        except (IndexError, TypeError) as error:
            raise CSTError(f"samples[{index!r}] does not fit {len(self)} samples: {error}") from error
        if len(chosen) == 0:
            raise CSTError(f"samples[{index!r}] chooses none of the {len(self)} samples")
        arrays = {name: getattr(self, name)[chosen] for name in ("coords", "values", "observed", "origin")}
        # A bootstrap chooses some samples twice; both copies cannot keep the same id.
        ids = [self.sample_ids[i] for i in chosen] if len(set(chosen)) == len(chosen) else None
        return self.replace(**arrays, sample_ids=ids)

    def __iter__(self) -> Iterator[Samples]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def from_list(cls, pairs: Iterable[tuple[ArrayLike, ArrayLike]], **names: Any) -> Samples:
        """Build from ragged samples: pairs of coordinates (n_i, d) or (n_i,) and values (n_i, c) or (n_i,).

        >>> Samples.from_list([([0, 1], [5, 6]), ([0, 1, 2], [7, 8, 9])]).point_observed.tolist()
        [[True, True, False], [True, True, True]]
        """
        columns: list[tuple[np.ndarray, np.ndarray]] = []
        for i, (coords, values) in enumerate(pairs):
            x, y = as_floats(f"coords of sample {i}", coords), as_floats(f"values of sample {i}", values)
            x, y = (a[:, None] if a.ndim == 1 else a for a in (x, y))
            if x.ndim != 2 or y.ndim != 2 or len(x) != len(y):
                raise CSTError(f"sample {i} must have coords (n, d) and values (n, c), got {x.shape} and {y.shape}")
            if columns and (x.shape[1], y.shape[1]) != (columns[0][0].shape[1], columns[0][1].shape[1]):
                raise CSTError(
                    f"sample {i} has d, c = {x.shape[1]}, {y.shape[1]}, "
                    f"but sample 0 has {columns[0][0].shape[1]}, {columns[0][1].shape[1]}; make them equal"
                )
            columns.append((x, y))
        if not columns:
            raise CSTError("from_list got no samples; pass at least one (coords, values) pair")
        n = max(len(x) for x, _ in columns)
        return cls(pad([x for x, _ in columns], n), pad([y for _, y in columns], n, np.nan), **names)

    @classmethod
    def concatenate(cls, parts: Sequence[Samples]) -> Samples:
        """All samples of all parts, padded to the longest. If integer ids clash, all samples are numbered anew."""
        if not parts:
            raise CSTError("concatenate got no parts; pass at least one Samples")
        first = parts[0]
        for i, part in enumerate(parts):
            for name in ("coord_names", "value_names", "units", "layout"):
                if getattr(part, name) != getattr(first, name):
                    raise CSTError(f"part {i} has {name} {getattr(part, name)}, but part 0 has {getattr(first, name)}")
        n = max(part.n for part in parts)
        ids: list[int | str] | None = [i for part in parts for i in part.sample_ids]
        if ids and all(isinstance(i, int) for i in ids) and len(set(ids)) < len(ids):
            ids = None
        arrays = {k: pad([a for p in parts for a in getattr(p, k)], n) for k in ("coords", "values")}
        seen = pad([a for p in parts for a in p.observed], n, False)
        origin = np.concatenate([part.origin for part in parts])
        return first.replace(**arrays, observed=seen, origin=origin, sample_ids=ids)

    def subset_points(self, mask: ArrayLike) -> Samples:
        """Copy in which the points where `mask` (N, n) is False are unobserved."""
        keep = np.asarray(mask)
        if keep.shape != (len(self), self.n) or keep.dtype != bool:
            raise CSTError(f"mask must be bool of shape {(len(self), self.n)}, got {keep.dtype} of shape {keep.shape}")
        return self.replace(observed=self.observed & keep[..., None])

    def split(self, fraction: float | int, seed: int = 0) -> tuple[Samples, Samples]:
        """Split at random into two disjoint sets of whole samples, the first with about `fraction` of them."""
        first = round(fraction * len(self)) if 0 < fraction < 1 else 0
        if not 0 < first < len(self):
            raise CSTError(f"fraction={fraction} of {len(self)} samples leaves one side empty; choose another")
        order = np.random.default_rng(seed).permutation(len(self))
        return self[np.sort(order[:first])], self[np.sort(order[first:])]

    def _order(self) -> np.ndarray:
        """Stable index (N, n) that puts observed points first, sorted by coordinate (first axis slowest)."""
        return np.lexsort((*np.moveaxis(self.coords, -1, 0)[::-1], ~self.point_observed), axis=-1)

    def _reordered(self, order: np.ndarray) -> Samples:
        """Copy with points in `order` (N, n), which puts observed ones first; shared padding at the end is cut."""
        order = order[:, : self.point_observed.sum(axis=1).max(), None]
        names = ("coords", "values", "observed")
        return self.replace(**{name: np.take_along_axis(getattr(self, name), order, axis=1) for name in names})

    def sorted(self) -> Samples:
        """Copy with the observed points of each sample first, sorted by coordinate (first axis slowest)."""
        return self._reordered(self._order())

    def _repeats(self, order: np.ndarray) -> Bool[np.ndarray, "N n"]:
        """In sorted order: True where an observed point has the coordinates of the one before it."""
        x = np.take_along_axis(self.coords, order[..., None], axis=1)
        exists = np.take_along_axis(self.point_observed, order, axis=1)
        repeat = np.zeros(exists.shape, dtype=bool)
        repeat[:, 1:] = (x[:, 1:] == x[:, :-1]).all(axis=-1) & exists[:, 1:]
        return repeat

    def merged(self) -> Samples:
        """Average, per channel, the observed points of a sample that have identical coordinates.

        The mean replaces the first of them and the others become padding. Warns if there are any; returns the same
        object if there are none.
        """
        order = self._order()
        repeat = self._repeats(order)
        if not repeat.any():
            return self
        warnings.warn(
            f"{repeat.sum()} points in {repeat.any(axis=1).sum()} samples repeat the coordinates of another "
            "point of their sample; their values were averaged",
            CSTWarning,
            stacklevel=2,
        )
        rows = np.arange(len(self))[:, None]
        starts = np.flatnonzero(~repeat)  # first point of each run of equal coordinates
        totals = np.add.reduceat(self.values[rows, order].reshape(-1, self.c), starts)
        counts = np.add.reduceat(self.observed[rows, order].reshape(-1, self.c).astype(np.int64), starts)
        place = (np.broadcast_to(rows, order.shape).ravel()[starts], order.ravel()[starts])
        values, observed = np.zeros_like(self.values), np.zeros_like(self.observed)
        values[place] = totals / np.maximum(counts, 1)
        observed[place] = counts > 0
        return self.replace(values=values, observed=observed)

    def windows(self, length: float | int, stride: float | int, axis: int = 0) -> Samples:
        """Cut each sample, a long recording, into windows [start, start + length) along coordinate `axis`.

        `length` and `stride` are in coordinate units. The first window starts at the first point, the next ones
        `stride` later each, as long as they end within the recording; its last point is taken to last one median step.
        A recording shorter than `length` gives one window. Windows without an observed point are dropped. Coordinates
        become relative to the start, which is added to `origin`; ids become "id@start".

        >>> w = Samples(np.arange(5.0), np.arange(5.0)[None]).windows(length=2, stride=2)
        >>> w.sample_ids, w.coords[..., 0].tolist(), w.values[..., 0].tolist()
        (('0@0', '0@2'), [[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [2.0, 3.0]])
        """
        for name, number in (("length", length), ("stride", stride)):
            if not (np.isfinite(number) and number > 0):
                raise CSTError(f"{name} must be a positive number in coordinate units, got {number!r}")
        if not 0 <= axis < self.d:
            raise CSTError(f"axis must be 0 to {self.d - 1}, got {axis!r}")
        rows, starts, indices = [], [], []
        for i, exists in enumerate(self.point_observed):
            at = np.flatnonzero(exists)
            at = at[np.argsort(self.coords[i, at, axis], kind="stable")]
            place = self.coords[i, at, axis]
            # A point that lies before a boundary only by rounding belongs to the window behind it.
            slack = 1e-9 * min(length, stride) + 4 * np.spacing(np.abs(place).max() + length)
            step = float(np.median(np.diff(place))) if len(place) > 1 else 0.0
            count = max(0, int((place[-1] + step - place[0] - length + slack) // stride)) + 1
            start = place[0] + stride * np.arange(count)
            first = np.searchsorted(place, start - slack)
            last = np.searchsorted(place, start + length - slack)
            start, first, last = (a[last > first] for a in (start, first, last))
            index = first[:, None] + np.arange((last - first).max())
            indices += list(np.where(index < last[:, None], at[np.minimum(index, len(at) - 1)], -1))
            rows.append(np.full(len(start), i))
            starts.append(start)
        row, begin = np.concatenate(rows), np.concatenate(starts)
        point = pad(indices, max(map(len, indices)), -1)
        coords = self.coords[row[:, None], point]
        coords[..., axis] = np.maximum(coords[..., axis] - begin[:, None], 0.0)
        origin = self.origin[row]
        origin[:, axis] += begin
        return self.replace(
            coords=coords,
            values=self.values[row[:, None], point],
            observed=self.observed[row[:, None], point] & (point >= 0)[..., None],
            origin=origin,
            sample_ids=[f"{self.sample_ids[i]}@{start:.12g}" for i, start in zip(row, begin, strict=True)],
        )

    def equals(self, other: Samples, tolerance: float = 0.0) -> bool:
        """Whether names, units, ids, origin and observed points (in order) agree; padding is ignored."""
        same = ("coord_names", "value_names", "sample_ids", "units", "layout")
        if any(getattr(self, name) != getattr(other, name) for name in same):
            return False
        a, b = (s._reordered(np.argsort(~s.point_observed, axis=1, kind="stable")) for s in (self, other))
        if a.values.shape != b.values.shape or (a.observed != b.observed).any():
            return False
        arrays = ("coords", "values", "origin")
        return all(np.allclose(getattr(a, k), getattr(b, k), rtol=tolerance, atol=tolerance) for k in arrays)

    def describe(self) -> str:
        """Readable summary of several lines: sizes, ranges, how much is observed."""
        return summary(self, repeats=int(self._repeats(self._order()).sum()))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        coords: Sequence[str] | None = None,
        values: Sequence[str] | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> Samples:
        """Read a file; the suffix says which kind.

        Parameters
        ----------
        path : `.npz`, `.csv`, `.tsv`, `.parquet`, `.nc` or `.zarr`.
        coords : names of the coordinate columns (tables) or dims (gridded NetCDF, Zarr).
        values : names of the value columns or variables; all others by default.
        max_bytes : files that declare larger arrays are refused.
        """
        with readable(path, f"{samples_suffix(path)} samples") as source:
            return cls(**read_samples(source, coords, values, max_bytes))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `load` reads, complete or not at all; the suffix says which kind."""
        write_samples(self, path)

    @classmethod
    def from_frame(
        cls, frame: Any, *, coords: Sequence[str] | None = None, values: Sequence[str] | None = None
    ) -> Samples:
        """Read a long pandas table: one row per point, empty cells are missing values.

        The table has coordinates, values and perhaps a column `sample`; without it, all rows are one sample. A heading
        "name [unit]" carries a unit. Coordinates are the columns with usual names (t, time, x, y, lat, ...) unless
        `coords` names them; all other columns are values, unless `values` names them.
        """
        return cls(**samples_from_table(frame, coords, values))

    def to_frame(self) -> Any:
        """Long pandas table with one row per observed point; missing channels are NaN. Inverse of `from_frame`."""
        return samples_to_table(self)

    @classmethod
    def from_xarray(
        cls, data: Any, *, coords: Sequence[str] | None = None, values: Sequence[str] | None = None
    ) -> Samples:
        """Read what `to_xarray` made, or a gridded Dataset or DataArray.

        A grid may have a dim `sample`. All other dims are coordinate axes, in the order of the array or of `coords`,
        and every sample has all points of the grid. Each variable with all these dims, or those in `values`, is a
        channel. Dates become hours since the first; a dim without coordinates counts 0, 1, 2...
        """
        return cls(**samples_from_dataset(data, coords, values))

    def to_xarray(self) -> Any:
        """Dataset with dims (sample, point) and a variable for each axis and channel; unobserved values are NaN."""
        return samples_to_dataset(self)
