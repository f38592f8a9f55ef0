"""`Samples`: many functions, each observed at its own points; the data that models take and return."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import EllipsisType
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats, refuse, shaped_coords, shaped_observed
from cstformer.data.calendar import checked_calendar
from cstformer.data.covariates import checked_covariates
from cstformer.data.dates import dated_axis
from cstformer.data.grids import KNOWN, samples_from_dataset, samples_to_dataset
from cstformer.data.grouping import Group, named_samples
from cstformer.data.joining import concatenated
from cstformer.data.layout import PatchLayout
from cstformer.data.names import checked_ids, checked_names, checked_units
from cstformer.data.ragged import averaged, repeats_before, stacked_pairs
from cstformer.data.sample_files import read_samples, samples_suffix, write_samples
from cstformer.data.summary import headline, summary
from cstformer.data.table_files import TextFormat
from cstformer.data.tables import samples_from_table, samples_to_table
from cstformer.data.windows import checked_window, cut, places, training_starts
from cstformer.errors import CSTError, CSTWarning
from cstformer.system.files import MAX_BYTES, readable

_ARRAYS = ("coords", "values", "observed")
_LABELS = ("coord_names", "value_names", "sample_ids", "units", "layout", *KNOWN)
_NUMBERS = (*_ARRAYS, "origin", "covariates")  # fields with a row for each sample
_FIELDS = (*_NUMBERS, *_LABELS)


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
    units : unit of each axis, channel or covariate, by name. The unit of dates is "hours since 2024-05-01T00:00:00".
    origin : (N, d), what `windows` subtracted from the coordinates; zeros by default.
    layout : how patch tokens tile frames; `frames_to_samples` sets it.
    covariates : (N, e), or a dict of columns by name, optional
        Known at every coordinate and never predicted; NaN is missing. In a dict, text becomes categories.
    covariate_names : names of the covariates.
    categories : labels of the covariates that hold numbers of categories, by name; a dict of columns sets it.
    calendar : "hour" (of the day), "weekday", "day" (of the year), for a model to read at every coordinate.
    window : length, stride and axis of the windows that these samples are; `windows` sets it.
    group : heading of the column of sample ids in tables, "sample" by default; False where all rows are one sample.

    Attributes
    ----------
    coords, values, observed : float64 (N, n, d), float64 (N, n, c), bool (N, n, c)
        Unobserved values and padding are stored as zeros, so that they can never leak.
    covariates : float64 (N, e), with e = 0 if there are none

    Examples
    --------
    >>> s = Samples([0.0, 0.5, 1.0], [[1.0, 2.0, 3.0], [4.0, np.nan, 6.0]])
    >>> s
    Samples(2 samples of 2-3 points, coordinates t, values value)
    >>> s.coords.shape, s.values.shape, s.point_observed[1].tolist()
    ((2, 3, 1), (2, 3, 1), [True, False, True])
    >>> s.replace(covariates={"age": [61, np.nan], "site": ["B", "A"]})
    Samples(2 samples of 2-3 points, coordinates t, values value, covariates age, site)
    """

    coords: Float[np.ndarray, "N n d"]
    values: Float[np.ndarray, "N n c"]
    observed: Bool[np.ndarray, "N n c"]
    origin: Float[np.ndarray, "N d"]
    layout: PatchLayout | None
    covariates: Float[np.ndarray, "N e"]

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
        covariates: ArrayLike | Mapping[str, ArrayLike] | None = None,
        covariate_names: Sequence[str] | None = None,
        categories: Mapping[str, Sequence[str]] | None = None,
        calendar: str | Sequence[str] | None = None,
        window: tuple[float, float, int] | None = None,
        group: Group = None,
    ) -> None:
        y = as_floats("values", values)
        y = y[..., None] if y.ndim == 2 else y
        if y.ndim != 3:
            raise CSTError(f"values must have shape (N, n, c) or (N, n), got {y.shape}; one sample is values[None]")
        if 0 in y.shape:
            raise CSTError(f"values must not be empty, got shape {y.shape}; pass at least one sample and point")
        x = shaped_coords(as_floats("coords", coords), y.shape)
        seen = shaped_observed(observed, y.shape) & ~np.isnan(y)
        ids = list(range(len(y)) if sample_ids is None else sample_ids)
        refuse(np.isinf(y) & seen, "values are infinite", "use NaN for missing values", ids, value_names)
        exists = seen.any(axis=-1)
        refuse(~np.isfinite(x).all(axis=-1) & exists, "coords are not finite", "drop those points", ids)
        if not exists.any(axis=1).all():
            raise CSTError(f"no value is observed in {named_samples(ids, ~exists.any(axis=1))}; drop such samples")

        self.coords = np.where(exists[..., None], x, 0.0)
        self.values = np.where(seen, y, 0.0)
        self.observed = seen
        self.coord_names = checked_names("coord_names", coord_names, self.d, "t", "coord")
        self.value_names = checked_names("value_names", value_names, self.c, "value", "value")
        self.sample_ids = checked_ids(ids, len(self))
        known = checked_covariates(covariates, covariate_names, categories, len(self))
        self.covariates, self.covariate_names, self.categories = known
        self.units = checked_units(units, self.coord_names, self.value_names, self.covariate_names)
        self.layout = layout
        self.window = None if window is None else checked_window(window)
        self.group = group
        self.calendar = checked_calendar(calendar, dated_axis(self.coord_names, self.units))
        self.origin = np.zeros((len(self), self.d)) if origin is None else as_floats("origin", origin) + 0.0
        if self.origin.shape != (len(self), self.d) or not np.isfinite(self.origin).all():
            raise CSTError(f"origin must be finite and (N, d) = {(len(self), self.d)}, got {self.origin.shape}")
        if layout is not None and layout.c != self.c:
            raise CSTError(f"layout has {layout.c} values per token, but values have {self.c} channels")

    def __len__(self) -> int:
        return len(self.values)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(N, n, c) of the values; with it, scikit-learn's tools choose samples as they choose rows of an array."""
        return self.values.shape

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
        return headline(self)

    def replace(
        self,
        *,
        coords: ArrayLike | EllipsisType = ...,
        values: ArrayLike | EllipsisType = ...,
        observed: ArrayLike | EllipsisType | None = ...,
        coord_names: Sequence[str] | EllipsisType | None = ...,
        value_names: Sequence[str] | EllipsisType | None = ...,
        sample_ids: Iterable[int | str] | EllipsisType | None = ...,
        units: Mapping[str, str] | EllipsisType | None = ...,
        origin: ArrayLike | EllipsisType | None = ...,
        layout: PatchLayout | EllipsisType | None = ...,
        covariates: ArrayLike | Mapping[str, ArrayLike] | EllipsisType | None = ...,
        covariate_names: Sequence[str] | EllipsisType | None = ...,
        categories: Mapping[str, Sequence[str]] | EllipsisType | None = ...,
        calendar: str | Sequence[str] | EllipsisType | None = ...,
        window: tuple[float, float, int] | EllipsisType | None = ...,
        group: Group | EllipsisType = ...,
    ) -> Samples:
        """Copy with some of the constructor arguments changed; those that are not given (``...``) stay.

        Examples
        --------
        >>> Samples([0.0, 1.0], [[1.0, 2.0]]).replace(value_names=["u"]).value_names
        ('u',)
        """
        given = {name: x for name, x in locals().items() if name in _FIELDS and x is not ...}
        kept = {name: getattr(self, name) for name in _FIELDS}
        known = given.get("covariates", self.covariates)
        if known is None or isinstance(known, Mapping):  # others than before: the old names do not hold
            labels = {k: v for k, v in self.units.items() if k not in self.covariate_names or k in (known or ())}
            kept |= {"covariate_names": None, "categories": None, "units": labels}
        return Samples(**kept | given)

    def __getitem__(self, index: Any) -> Samples:
        try:
            chosen = np.atleast_1d(np.arange(len(self))[index])
        except (IndexError, TypeError) as error:
            raise CSTError(f"samples[{index!r}] does not fit {len(self)} samples: {error}") from error
        if len(chosen) == 0:
            raise CSTError(f"samples[{index!r}] chooses none of the {len(self)} samples")
        arrays = {name: getattr(self, name)[chosen] for name in _NUMBERS}
        # A bootstrap chooses some samples twice; both copies cannot keep the same id.
        ids = [self.sample_ids[i] for i in chosen] if len(set(chosen)) == len(chosen) else None
        return self.replace(**arrays, sample_ids=ids)

    def __iter__(self) -> Iterator[Samples]:
        return (self[i] for i in range(len(self)))

    @classmethod
    def from_list(
        cls,
        pairs: Iterable[tuple[ArrayLike, ArrayLike]],
        *,
        coord_names: Sequence[str] | None = None,
        value_names: Sequence[str] | None = None,
        sample_ids: Iterable[int | str] | None = None,
        units: Mapping[str, str] | None = None,
        origin: ArrayLike | None = None,
        layout: PatchLayout | None = None,
        covariates: ArrayLike | Mapping[str, ArrayLike] | None = None,
        covariate_names: Sequence[str] | None = None,
        categories: Mapping[str, Sequence[str]] | None = None,
        calendar: str | Sequence[str] | None = None,
        window: tuple[float, float, int] | None = None,
        group: Group = None,
    ) -> Samples:
        """Build from ragged samples: pairs of coordinates (n_i, d) or (n_i,) and values (n_i, c) or (n_i,).

        The other arguments are those of `Samples`.

        Examples
        --------
        >>> Samples.from_list([([0, 1], [5, 6]), ([0, 1, 2], [7, 8, 9])]).point_observed.tolist()
        [[True, True, False], [True, True, True]]
        """
        return cls(
            *stacked_pairs(pairs),
            coord_names=coord_names,
            value_names=value_names,
            sample_ids=sample_ids,
            units=units,
            origin=origin,
            layout=layout,
            covariates=covariates,
            covariate_names=covariate_names,
            categories=categories,
            calendar=calendar,
            window=window,
            group=group,
        )

    @classmethod
    def concatenate(cls, parts: Sequence[Samples]) -> Samples:
        """All samples of all parts, padded to the longest. If integer ids clash, all samples are numbered anew.

        Dates count from the epoch of the first part; labels of a covariate are united.
        """
        return concatenated(parts)

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
        coords, values, observed = (np.take_along_axis(getattr(self, k), order, axis=1) for k in _ARRAYS)
        return self.replace(coords=coords, values=values, observed=observed)

    def sorted(self) -> Samples:
        """Copy with the observed points of each sample first, sorted by coordinate (first axis slowest)."""
        return self._reordered(self._order())

    def merged(self) -> Samples:
        """Average, per channel, the observed points of a sample that have identical coordinates.

        The mean replaces the first of them and the others become padding. Warns if there are any; returns the same
        object if there are none.
        """
        order = self._order()
        repeat = repeats_before(self.coords, self.point_observed, order)
        if not repeat.any():
            return self
        warnings.warn(
            f"{repeat.sum()} points in {repeat.any(axis=1).sum()} samples repeat the coordinates of another "
            "point of their sample; their values were averaged",
            CSTWarning,
            stacklevel=2,
        )
        values, observed = averaged(self.values, self.observed, order, repeat)
        return self.replace(values=values, observed=observed)

    def windows(self, length: float | int, stride: float | int, axis: int = 0) -> Samples:
        """Cut each sample, a long recording, into windows [start, start + length) along coordinate `axis`.

        `length` and `stride` are in coordinate units. The first window starts at the first point, the next ones
        `stride` later each, as long as they end within the recording; its last point is taken to last one median step.
        A recording shorter than `length` gives one window. Windows without an observed point are dropped. Coordinates
        become relative to the start, which is added to `origin`; ids become "id@start". A model that is fitted on
        windows reads whole recordings in windows of this length.

        >>> w = Samples(np.arange(5.0), np.arange(5.0)[None]).windows(length=2, stride=2)
        >>> w.sample_ids, w.coords[..., 0].tolist(), w.values[..., 0].tolist()
        (('0@0', '0@2'), [[0.0, 1.0], [0.0, 1.0]], [[0.0, 1.0], [2.0, 3.0]])
        """
        if not 0 <= axis < self.d:
            raise CSTError(f"axis must be 0 to {self.d - 1}, got {axis!r}")
        window = checked_window((length, stride, axis))
        starts = [training_starts(places(self, i, axis)[0], window) for i in range(len(self))]
        return cut(self, starts, window)[0]

    def equals(self, other: Samples, tolerance: float = 0.0) -> bool:
        """Whether names, units, ids, origin, covariates and observed points (in order) agree; padding is ignored."""
        if any(getattr(self, name) != getattr(other, name) for name in _LABELS):
            return False
        a, b = (s._reordered(np.argsort(~s.point_observed, axis=1, kind="stable")) for s in (self, other))
        if a.values.shape != b.values.shape or (a.observed != b.observed).any():
            return False
        arrays = ((getattr(a, k), getattr(b, k)) for k in ("coords", "values", "origin", "covariates"))
        return all(np.allclose(x, y, rtol=tolerance, atol=tolerance, equal_nan=True) for x, y in arrays)

    def describe(self) -> str:
        """Readable summary of several lines: sizes, ranges, how much is observed."""
        return summary(self, repeats=int(repeats_before(self.coords, self.point_observed, self._order()).sum()))

    def plot(self, channels: Sequence[str] | None = None) -> Any:
        """Draw the first four samples of curves; a figure that notebooks show and ``savefig(path)`` writes."""
        from cstformer.report.sample_plots import plot_samples  # matplotlib: only pictures need it

        return plot_samples(self, channels=channels)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        coords: Sequence[str] | None = None,
        values: Sequence[str] | None = None,
        covariates: Sequence[str] | None = None,
        calendar: str | Sequence[str] | None = None,
        relative: bool | None = None,
        group: Group = None,
        form: TextFormat | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> Samples:
        """Read a file; the suffix says which kind.

        Parameters
        ----------
        path : `.npz`, `.csv`, `.tsv` (both also with `.gz`), `.parquet`, `.xlsx`, `.nc` or `.zarr`.
        coords : names of the coordinate columns (tables) or dims (gridded NetCDF, Zarr).
        values : names of the value columns or variables; all others by default.
        covariates : names of the covariates, optional
            Columns of a table, or variables over `sample`; of an `.npz`, which of its covariates to keep.
        calendar, relative, group : see `from_frame`.
        form : separator, decimal mark and missing values of a text file; found from its first lines by default.
        max_bytes : files that declare larger arrays are refused; 16 GiB by default.
        """
        with readable(path, f"{samples_suffix(path)} samples") as source:
            chosen = {} if calendar is None else {"calendar": calendar}
            found = read_samples(source, coords, values, covariates, relative, group, form or TextFormat(), max_bytes)
            return cls(**found | chosen)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that `load` reads, complete or not at all; the suffix says which kind."""
        write_samples(self, path)

    @classmethod
    def from_frame(
        cls,
        frame: Any,
        *,
        coords: Sequence[str] | None = None,
        values: Sequence[str] | None = None,
        covariates: Sequence[str] | None = None,
        calendar: str | Sequence[str] | None = None,
        relative: bool | None = None,
        group: Group = None,
    ) -> Samples:
        """Read a long pandas table: one row per point, empty cells are missing values.

        The table has coordinates, values and perhaps a column that names the samples. A heading "name [unit]" carries a
        unit. Samples without any value are left out, with a warning.

        Parameters
        ----------
        frame : DataFrame
        coords : names of the coordinate columns; by default those with usual names (t, time, date, x, y, lat, ...).
            Dates (datetime64 or ISO text) become hours since the first one.
        values : names of the value columns; all others by default.
        covariates : names of columns that are constant within each sample; text becomes categories.
        calendar : "hour" (of the day), "weekday" and "day" (of the year), computed from the dates.
        relative : bool, optional
            Whether dates count from the beginning of each sample, which `origin` keeps, or all from the first date of
            the table. By default they are relative if every sample is shorter than half of the whole.
        group : str or False, optional
            Name of the column of samples; by default `sample`, if there is one. Without it all rows are one sample; a
            table that looks like several is refused, unless group=False confirms that it is one.
        """
        return cls(**samples_from_table(frame, coords, values, covariates, relative, group), calendar=calendar)

    def to_frame(self) -> Any:
        """Long pandas table with one row per observed point; missing channels are NaN. Inverse of `from_frame`.

        Dates are timestamps again. A covariate has a heading such as "covariate:age", which `from_frame` recognises.
        """
        return samples_to_table(self)

    @classmethod
    def from_xarray(
        cls,
        data: Any,
        *,
        coords: Sequence[str] | None = None,
        values: Sequence[str] | None = None,
        covariates: Sequence[str] | None = None,
        group: Group = None,
    ) -> Samples:
        """Read what `to_xarray` made, or a gridded Dataset or DataArray.

        A grid may have a dim `sample`, or one of another name, which `group` gives. All other dims are coordinate axes,
        in the order of the array or of `coords`, and every sample has all points of the grid. Each variable with all
        these dims, or those in `values`, is a channel; those in `covariates` have the dim of the samples alone. Dates
        become hours since the first; a dim without coordinates counts 0, 1, 2...
        """
        return cls(**samples_from_dataset(data, coords, values, covariates, group=group))

    def to_xarray(self) -> Any:
        """Dataset with dims (sample, point) and a variable for each axis and channel; unobserved values are NaN."""
        return samples_to_dataset(self)
