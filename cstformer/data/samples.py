"""`Samples`: many functions, each observed at its own points; the one object that travels."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from cstformer.errors import CSTError, CSTWarning

if TYPE_CHECKING:
    from cstformer.data.patches import PatchLayout


class Samples:
    """N functions R^d -> R^c, each observed at its own n points; shorter ones are padded.

    Parameters
    ----------
    coords : (N, n, d), or (N, n) for d = 1; (n, d) or (n,) when all samples share one grid.
        A two-dimensional array is read as (N, n) whenever it has that shape.
    values : (N, n, c), or (N, n) for c = 1. NaN is a missing value.
    observed : (N, n) or (N, n, c), optional. False is padding or a missing channel.
    coord_names, value_names : names of the axes and of the channels.
    sample_ids : one unique integer or string a sample.
    units : unit by name of axis or channel.
    origin : (N, d), what `windows` subtracted from the coordinates; zeros by default.
    layout : how patch tokens go back to frames; `patches.frames_to_samples` sets it.

    Attributes
    ----------
    coords, values, observed : float64 (N, n, d), float64 (N, n, c), bool (N, n, c)
        What is not observed is stored as zero, so that padding can never leak.

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
        layout: Any = None,
    ) -> None:
        y = as_floats("values", values)
        y = y[..., None] if y.ndim == 2 else y
        if y.ndim != 3:
            raise CSTError(f"values must have shape (N, n, c) or (N, n), got {y.shape}; one sample is values[None]")
        if 0 in y.shape:
            raise CSTError(f"values must not be empty, got shape {y.shape}; pass at least one sample and point")
        x = _shaped_coords(as_floats("coords", coords), y.shape)
        seen = _shaped_observed(observed, y.shape) & ~np.isnan(y)
        _refuse(np.isinf(y) & seen, "values are infinite", "use NaN for missing values")
        real = seen.any(axis=-1)
        _refuse(~np.isfinite(x).all(axis=-1) & real, "coords are not finite", "drop those points")
        if not real.any(axis=1).all():
            raise CSTError(f"no value is observed in sample {_few(~real.any(axis=1))}; drop such samples")

        self.coords = np.where(real[..., None], x, 0.0)
        self.values = np.where(seen, y, 0.0)
        self.observed = seen
        self.coord_names = _names("coord_names", coord_names, self.d, "t", "coord")
        self.value_names = _names("value_names", value_names, self.c, "value", "value")
        self.sample_ids = _ids(sample_ids, len(self))
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
            raise CSTError(f"layout has {layout.c} values a token, but values have {self.c} channels")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def n(self) -> int:
        """Points a sample, padding included."""
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

    def _with(self, **changes: Any) -> Samples:
        """Copy with some constructor arguments changed."""
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
        # A sample chosen twice (a bootstrap) is two samples: both cannot keep the one id.
        ids = [self.sample_ids[i] for i in chosen] if len(set(chosen)) == len(chosen) else None
        return self._with(**arrays, sample_ids=ids)

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
        return cls(_pad([x for x, _ in columns], n), _pad([y for _, y in columns], n, np.nan), **names)

    @classmethod
    def concatenate(cls, parts: Sequence[Samples]) -> Samples:
        """All samples of all parts, padded to the longest; integer ids that clash are numbered anew."""
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
        arrays = {k: _pad([a for p in parts for a in getattr(p, k)], n) for k in ("coords", "values")}
        seen = _pad([a for p in parts for a in p.observed], n, False)
        origin = np.concatenate([part.origin for part in parts])
        return first._with(**arrays, observed=seen, origin=origin, sample_ids=ids)

    def subset_points(self, mask: ArrayLike) -> Samples:
        """Copy in which the points where `mask` (N, n) is False are unobserved."""
        keep = np.asarray(mask)
        if keep.shape != (len(self), self.n) or keep.dtype != bool:
            raise CSTError(f"mask must be bool of shape {(len(self), self.n)}, got {keep.dtype} of shape {keep.shape}")
        return self._with(observed=self.observed & keep[..., None])

    def split(self, fraction: float | int, seed: int = 0) -> tuple[Samples, Samples]:
        """Two disjoint random sets of whole samples, the first with about `fraction` of them, in order."""
        first = round(fraction * len(self)) if 0 < fraction < 1 else 0
        if not 0 < first < len(self):
            raise CSTError(f"fraction={fraction} of {len(self)} samples leaves one side empty; choose another")
        order = np.random.default_rng(seed).permutation(len(self))
        return self[np.sort(order[:first])], self[np.sort(order[first:])]

    def _order(self) -> np.ndarray:
        """Index (N, n) that puts observed points first and sorts them, first axis slowest; stable."""
        return np.lexsort((*np.moveaxis(self.coords, -1, 0)[::-1], ~self.point_observed), axis=-1)

    def _reordered(self, order: np.ndarray) -> Samples:
        """Copy with points taken in `order` (N, n), observed ones first, without the trailing padding."""
        order = order[:, : self.point_observed.sum(axis=1).max(), None]
        names = ("coords", "values", "observed")
        return self._with(**{name: np.take_along_axis(getattr(self, name), order, axis=1) for name in names})

    def sorted(self) -> Samples:
        """Copy with the observed points of each sample first, sorted by coordinate (first axis slowest)."""
        return self._reordered(self._order())

    def _repeats(self, order: np.ndarray) -> Bool[np.ndarray, "N n"]:
        """In sorted order: True where an observed point has the coordinates of the one before it."""
        x = np.take_along_axis(self.coords, order[..., None], axis=1)
        real = np.take_along_axis(self.point_observed, order, axis=1)
        repeat = np.zeros(real.shape, dtype=bool)
        repeat[:, 1:] = (x[:, 1:] == x[:, :-1]).all(axis=-1) & real[:, 1:]
        return repeat

    def merged(self) -> Samples:
        """Average, per channel, the observed points of a sample that have identical coordinates.

        The mean takes the place of the first of them and the others become padding. Warns when there are any;
        returns the same object when there are none.
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
        starts = np.flatnonzero(~repeat)  # each run of repeats begins at one of these, in sorted order
        totals = np.add.reduceat(self.values[rows, order].reshape(-1, self.c), starts)
        counts = np.add.reduceat(self.observed[rows, order].reshape(-1, self.c).astype(np.int64), starts)
        place = (np.broadcast_to(rows, order.shape).ravel()[starts], order.ravel()[starts])
        values, observed = np.zeros_like(self.values), np.zeros_like(self.observed)
        values[place] = totals / np.maximum(counts, 1)
        observed[place] = counts > 0
        return self._with(values=values, observed=observed)

    def windows(self, length: float | int, stride: float | int, axis: int = 0) -> Samples:
        """Cut each sample, one long recording, into windows [start, start + length) along coordinate `axis`.

        `length` and `stride` are in coordinate units. Starts run from the sample's minimum in steps of
        `stride` while the window ends within the recording, whose last point lasts one (median) step; a
        recording shorter than one window is one window, and a window without an observed point is dropped.
        Coordinates become relative to the start, which is added to `origin`; ids become "id@start".

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
        for i, real in enumerate(self.point_observed):
            at = np.flatnonzero(real)
            at = at[np.argsort(self.coords[i, at, axis], kind="stable")]
            place = self.coords[i, at, axis]
            # A point one rounding error before a border belongs behind it.
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
        point = _pad(indices, max(map(len, indices)), -1)
        coords = self.coords[row[:, None], point]
        coords[..., axis] = np.maximum(coords[..., axis] - begin[:, None], 0.0)
        origin = self.origin[row]
        origin[:, axis] += begin
        return self._with(
            coords=coords,
            values=self.values[row[:, None], point],
            observed=self.observed[row[:, None], point] & (point >= 0)[..., None],
            origin=origin,
            sample_ids=[f"{self.sample_ids[i]}@{start:.12g}" for i, start in zip(row, begin, strict=True)],
        )

    def equals(self, other: Samples, tolerance: float = 0.0) -> bool:
        """Whether names, units, ids, origin and observed points (in order) agree; padding does not count."""
        same = ("coord_names", "value_names", "sample_ids", "units", "layout")
        if any(getattr(self, name) != getattr(other, name) for name in same):
            return False
        a, b = (s._reordered(np.argsort(~s.point_observed, axis=1, kind="stable")) for s in (self, other))
        if a.values.shape != b.values.shape or (a.observed != b.observed).any():
            return False
        arrays = ("coords", "values", "origin")
        return all(np.allclose(getattr(a, k), getattr(b, k), rtol=tolerance, atol=tolerance) for k in arrays)

    def describe(self) -> str:
        """Several readable lines: sizes, ranges, how much is observed."""
        counts = self.point_observed.sum(axis=1)
        repeats = int(self._repeats(self._order()).sum())
        shared = (self.coords == self.coords[:1]).all() and (self.point_observed == self.point_observed[:1]).all()
        at_points = self.observed[self.point_observed]
        lines = [
            f"{len(self)} samples, {self.d} coordinates, {self.c} values",
            f"points per sample: min {counts.min()}, median {np.median(counts):g}, max {counts.max()}",
            f"grid: {'the same for all samples' if shared else 'each sample has its own'}",
            f"observed: {100 * at_points.mean():.4g} % of the values at these points",
            f"repeated coordinates: {repeats or 'none'}",
        ]
        for k, name in enumerate(self.coord_names):
            x = self.coords[..., k][self.point_observed]
            lines.append(f"coordinate {self._label(name)}: {x.min():.6g} to {x.max():.6g}")
        for k, name in enumerate(self.value_names[:8]):
            y = self.values[..., k][self.observed[..., k]]
            numbers = f"mean {y.mean():.6g}, sd {y.std():.6g}, min {y.min():.6g}, max {y.max():.6g}" if len(y) else ""
            lines.append(f"value {self._label(name)}: {numbers or 'never observed'}")
        if self.c > 8:
            y = self.values[self.observed]
            lines.append(
                f"... and {self.c - 8} more; all together: mean {y.mean():.6g}, sd {y.std():.6g}, "
                f"min {y.min():.6g}, max {y.max():.6g}"
            )
        if self.origin.any():
            lines.append("origin: coordinates are relative to the start of each window")
        if self.layout is not None:
            lines.append(f"layout: {self.layout}")
        return "\n".join(lines)

    def _label(self, name: str) -> str:
        return f"{name} [{self.units[name]}]" if name in self.units else name

    @classmethod
    def load(cls, path: str | os.PathLike[str], **options: Any) -> Samples:
        """Read a file; see `sample_files.load_samples`."""
        from cstformer.data.sample_files import load_samples

        return load_samples(path, **options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file whole or not at all; see `sample_files.save_samples`."""
        from cstformer.data.sample_files import save_samples

        save_samples(self, path)

    @classmethod
    def from_frame(cls, frame: Any, **options: Any) -> Samples:
        """Read a long pandas table; see `sample_files.from_frame`."""
        from cstformer.data.sample_files import from_frame

        return from_frame(frame, **options)

    def to_frame(self) -> Any:
        """Long pandas table, one row an observed point; see `sample_files.to_frame`."""
        from cstformer.data.sample_files import to_frame

        return to_frame(self)

    @classmethod
    def from_xarray(cls, data: Any, **options: Any) -> Samples:
        """Read an xarray Dataset or DataArray; see `sample_files.from_xarray`."""
        from cstformer.data.sample_files import from_xarray

        return from_xarray(data, **options)

    def to_xarray(self) -> Any:
        """Dataset with dims (sample, point); see `sample_files.to_xarray`."""
        from cstformer.data.sample_files import to_xarray

        return to_xarray(self)


def as_floats(name: str, data: Any) -> np.ndarray:
    """Any array-like of real numbers as float64; masked entries become NaN.

    >>> as_floats("values", [1, 2]).dtype
    dtype('float64')
    """
    if hasattr(data, "detach"):
        data = data.detach().cpu()
    try:
        masked = np.ma.isMaskedArray(data)
        array = data.astype(np.float64).filled(np.nan) if masked else np.asarray(data)
    except (TypeError, ValueError, RuntimeError) as error:
        raise CSTError(
            f"{name} is not one rectangular array of numbers ({error}); ragged samples: Samples.from_list"
        ) from error
    if array.dtype.kind not in "fiub":
        raise CSTError(f"{name} must be real numbers, got dtype {array.dtype}; convert them to float")
    return array.astype(np.float64, copy=False)


def _shaped_coords(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Coordinates as (N, n, d), for values of `shape` (N, n, c)."""
    N, n, _ = shape
    if x.shape == (N, n):
        x = x[..., None]
    elif x.ndim in (1, 2) and len(x) == n:
        x = np.broadcast_to(x.reshape(n, -1), (N, n, x.size // n))
    elif x.ndim not in (1, 2, 3):
        raise CSTError(f"coords must have shape (N, n, d), (N, n), (n, d) or (n,), got {x.shape}")
    if x.ndim != 3 or x.shape[:2] != (N, n):
        what = "sample" if x.ndim == 3 and len(x) != N else "point"
        raise CSTError(
            f"coords {x.shape} and values {shape} differ in the number of {what}s; "
            f"pass coords ({N}, {n}, d), or ({n}, d) for one shared grid"
        )
    if x.shape[2] == 0:
        raise CSTError(f"coords must have at least one axis, got shape {x.shape}")
    return x


def _shaped_observed(observed: ArrayLike | None, shape: tuple[int, ...]) -> np.ndarray:
    """`observed` as bool (N, n, c)."""
    if observed is None:
        return np.ones(shape, dtype=bool)
    is_bool = getattr(observed, "dtype", None) == np.bool_  # spares large arrays the way through floats
    seen = np.asarray(observed) if is_bool else as_floats("observed", observed)
    if seen.shape not in (shape, shape[:2]):
        raise CSTError(f"observed must have shape {shape[:2]} or {shape}, got {seen.shape}")
    if not is_bool and not np.isin(seen, (0, 1)).all():
        raise CSTError("observed must hold only True and False (or 1 and 0)")
    return np.broadcast_to(seen.reshape(*shape[:2], -1).astype(bool), shape)


def _refuse(bad: np.ndarray, what: str, remedy: str) -> None:
    """Error that names the first bad sample and point."""
    if bad.any():
        sample, point, *channel = np.argwhere(bad)[0]
        where = f", channel {channel[0]}" if channel else ""
        raise CSTError(f"{what} at {bad.sum()} places, first at sample {sample}, point {point}{where}; {remedy}")


def _few(mask: np.ndarray) -> str:
    """First few indices where `mask` is True."""
    found = np.flatnonzero(mask)
    return ", ".join(map(str, found[:5])) + (f" and {len(found) - 5} more" if len(found) > 5 else "")


def _names(what: str, given: Sequence[str] | None, count: int, single: str, prefix: str) -> tuple[str, ...]:
    """Names, checked, or default ones."""
    if given is None:
        return (single,) if count == 1 else tuple(f"{prefix}{i}" for i in range(count))
    names = (given,) if isinstance(given, str) else tuple(str(name) for name in given)
    if len(names) != count:
        raise CSTError(f"{what} must have {count} names, got {len(names)}: {list(names)}")
    if len(set(names)) < count:
        raise CSTError(f"{what} must differ, got {list(names)}")
    if reserved := {"", "sample", "point"} & set(names):
        raise CSTError(f"{what} may not use {reserved.pop()!r}, which files need for themselves; rename it")
    return names


def _ids(given: Iterable[int | str] | None, count: int) -> tuple[int | str, ...]:
    """Sample ids, checked, or 0..N-1. 1 and "1" count as equal: a text file cannot tell them apart."""
    if given is None:
        return tuple(range(count))
    ids = tuple(i if isinstance(i, str) else int(i) if isinstance(i, int | np.integer) else None for i in given)
    if len(ids) != count:
        raise CSTError(f"sample_ids must have one id for each of the {count} samples, got {len(ids)}")
    good = tuple(i for i in ids if i is not None)
    if len(good) < count:
        raise CSTError("sample_ids must be integers or strings")
    texts, times = np.unique([str(i) for i in good], return_counts=True)
    if (times > 1).any():
        raise CSTError(f"sample_ids must be unique, got {str(texts[times > 1][0])!r} more than once")
    return good


def _pad(arrays: Sequence[np.ndarray], n: int, fill: float | int = 0.0) -> np.ndarray:
    """Stack arrays (n_i, ...) as (N, n, ...), filled up at the end."""
    out = np.full((len(arrays), n, *arrays[0].shape[1:]), fill, dtype=arrays[0].dtype)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out
