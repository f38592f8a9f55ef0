"""Dates as a time axis: timestamps become hours since an epoch, and come back.

The unit of a dated axis is that of the CF conventions, ``hours since 2024-05-01T00:00:00``, perhaps with a time zone
(``+02:00``). It stands among the other units, so that every kind of file and every model keeps it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timezone
from typing import TYPE_CHECKING, Any

import numpy as np

from cstformer.errors import CSTError

if TYPE_CHECKING:
    from cstformer.data.samples import Samples

HOURS = {"seconds": 1 / 3600, "minutes": 1 / 60, "hours": 1.0, "days": 24.0}
"""Length in hours of the units of time that a dated axis may have."""
_ISO = r"\s*\d{4}-\d{2}(?:-\d{2}|$)"  # how an ISO date begins
_ZONE = r"\d[T ]\d{2}[\d:.,]*\s*(Z|[+-]\d{2}(?::?\d{2})?)$"  # the time zone behind a time of day


@dataclass(frozen=True)
class Clock:
    """Unit and epoch of a dated axis.

    Attributes
    ----------
    hours : float
        Length of the unit in hours.
    epoch : datetime
        The date of coordinate 0, with a time zone or without.

    Examples
    --------
    >>> clock = Clock.parse("days since 2024-05-01T12:00:00")
    >>> clock.hours, clock.dates(np.array([0.0, 0.25])).astype(str).tolist()
    (24.0, ['2024-05-01T12:00:00.000000', '2024-05-01T18:00:00.000000'])
    >>> Clock.parse("hours") is None
    True
    """

    hours: float
    epoch: datetime

    @classmethod
    def parse(cls, unit: str) -> Clock | None:
        """Read "hours since 2024-05-01T00:00:00"; None if the unit is of another form."""
        name, _, date = unit.partition(" since ")
        if name not in HOURS:
            return None
        try:
            return cls(HOURS[name], datetime.fromisoformat(date.strip()))
        except ValueError:
            return None

    @property
    def zone(self) -> timezone | None:
        """Time zone of the epoch, as a fixed offset from UTC."""
        offset = self.epoch.utcoffset()
        return None if offset is None else timezone(offset)

    def dates(self, x: np.ndarray) -> np.ndarray:
        """Local dates (datetime64[us]) of coordinates: the hours of ten years in float64 still tell microseconds."""
        return self._wall() + np.rint(x * self.hours * 3.6e9).astype("timedelta64[us]")

    def coords(self, dates: Any) -> np.ndarray:
        """Coordinates of dates, of the same shape: datetime64, timestamps of pandas or Python, or ISO text.

        Dates without a time zone, as datetime64 always is, are local ones.

        >>> Clock.parse("hours since 2024-05-01T00:00:00+02:00").coords(["2024-05-01T00:00Z"]).tolist()
        [2.0]
        """
        import pandas as pd

        shape = np.shape(dates)
        hours, unit = read_dates(pd.Series(dates if len(shape) == 1 else np.ravel(dates)), "at")
        epoch = datetime.fromisoformat(unit.partition(" since ")[2])
        own = Clock(1.0, epoch if epoch.tzinfo else epoch.replace(tzinfo=self.epoch.tzinfo))
        return ((hours + own.hours_after(self)) / self.hours).reshape(shape)

    def hours_after(self, other: Clock) -> float:
        """Hours from the epoch of another clock to that of this one."""
        if (self.zone is None) != (other.zone is None):
            raise CSTError(
                f"dates with and without a time zone cannot be compared: {self.epoch.isoformat()} and "
                f"{other.epoch.isoformat()}; give both a time zone, or none"
            )
        return (self.epoch - other.epoch).total_seconds() / 3600

    def hours_since(self, reference: str) -> float:
        """Hours from a local date to the epoch."""
        return float((self._wall() - np.datetime64(reference)) / np.timedelta64(1, "h"))

    def shift_to(self, other: Clock) -> float:
        """What to add to coordinates of this clock, in units of the other, to count from the epoch of the other."""
        if self.hours != other.hours:
            raise CSTError(f"one time axis has a unit of {self.hours:g} hours, another of {other.hours:g}; convert one")
        return self.hours_after(other) / self.hours

    def _wall(self) -> np.datetime64:
        return np.datetime64(self.epoch.replace(tzinfo=None), "us")


def dated_axis(coord_names: Sequence[str], units: Mapping[str, str]) -> tuple[int, Clock] | None:
    """Axis with dates and its clock; None if no axis has dates.

    >>> dated_axis(["x", "t"], {"t": "hours since 2024-05-01"})[0]
    1
    """
    clocks = ((k, Clock.parse(units.get(name, ""))) for k, name in enumerate(coord_names))
    return next(((k, clock) for k, clock in clocks if clock is not None), None)


def date_unit(coord_names: Sequence[str], units: Mapping[str, str]) -> str:
    """Unit of the dated axis, such as "hours since 2024-05-01T00:00:00"; empty if no axis has dates."""
    found = dated_axis(coord_names, units)
    return "" if found is None else units[coord_names[found[0]]]


def has_dates(column: Any) -> bool:
    """Whether a pandas column holds dates: as its type says, or as ISO text in at least one row."""
    if column.dtype.kind == "M":
        return True
    return column.dtype.kind in "OT" and bool(column.dropna().astype(str).str.match(_ISO).any())


def are_dates(at: Any) -> bool:
    """Whether queries are dates: datetime64, or a sequence that begins with a date or its ISO text.

    >>> are_dates(["2024-05-01"]), are_dates([datetime(2024, 5, 1)]), are_dates(["1.5"]), are_dates([1.5])
    (True, True, False, False)
    """
    kind = getattr(getattr(at, "dtype", None), "kind", None)  # tensors have other dtypes
    if kind in ("O", "U", "T"):
        at = np.asarray(at, dtype=object).ravel().tolist()
    while isinstance(at, (list, tuple)) and at:
        at = at[0]
    return kind == "M" or isinstance(at, (date, np.datetime64)) or (isinstance(at, str) and bool(re.match(_ISO, at)))


def read_dates(column: Any, name: str) -> tuple[np.ndarray, str]:
    """Hours since the first date of a pandas column, NaN where it is empty, and their unit with that date."""
    import pandas as pd

    dates = column if column.dtype.kind == "M" else _parsed(column, name)
    if dates.isna().all():
        raise CSTError(f"column {name!r} has no date; fill it, or choose the axes by coords=[...]")
    if dates.dt.tz is not None:
        offsets = dates.dt.tz_localize(None) - dates.dt.tz_convert("UTC").dt.tz_localize(None)
        if offsets.nunique() > 1:
            raise CSTError(
                f"column {name!r} changes its offset from UTC (summer time?); convert it to UTC or to a fixed offset"
            )
    first = dates.min()
    first -= pd.Timedelta(nanoseconds=first.nanosecond)  # a datetime of Python holds microseconds
    hours = ((dates - first) / pd.Timedelta(hours=1)).to_numpy(dtype=np.float64, na_value=np.nan)
    epoch = first.to_pydatetime().isoformat(timespec="microseconds" if first.microsecond else "seconds")
    return hours, f"hours since {epoch}"


def _parsed(column: Any, name: str) -> Any:
    """Dates from ISO text, all with the same time zone or all without."""
    import pandas as pd

    text = column.astype("string").str.strip()
    dates = pd.to_datetime(text, format="ISO8601", errors="coerce", utc=True)
    bad = np.flatnonzero(np.asarray(dates.isna() & text.notna()))
    if len(bad):
        raise CSTError(
            f"column {name!r} has {column.iloc[bad[0]]!r} in row {bad[0] + 1}, which is no date of the form "
            "2024-05-01T13:30:00; correct it"
        )
    zones = text.dropna().str.extract(_ZONE, expand=False).drop_duplicates()
    found = {None if pd.isna(z) else datetime.fromisoformat(f"2000-01-01T00:00{z}").tzinfo for z in zones}
    if len(found) > 1:
        names = ", ".join(sorted(str(z or "none") for z in found))
        raise CSTError(f"column {name!r} mixes time zones ({names}); convert all its dates to one of them")
    zone = found.pop()
    return dates.dt.tz_localize(None) if zone is None else dates.dt.tz_convert(zone)


def begin_each(hours: np.ndarray, sample: np.ndarray, relative: bool | None) -> np.ndarray:
    """Time (N,) from which each sample counts: its first one, or 0 for all samples.

    ``relative`` None decides: if even the longest sample lasts less than half of the time that all samples cover, each
    counts from its own beginning, as the stays of patients do; else all count from the first date, as the records of
    stations do.

    >>> stays = np.array([0.0, 5.0, 900.0, 904.0])
    >>> begin_each(stays, np.array([0, 0, 1, 1]), None).tolist()
    [0.0, 900.0]
    """
    known = ~np.isnan(hours)
    first, last = np.full(sample.max() + 1, math.inf), np.full(sample.max() + 1, -math.inf)
    np.minimum.at(first, sample[known], hours[known])
    np.maximum.at(last, sample[known], hours[known])
    first, last = np.where(first <= last, first, 0.0), np.where(first <= last, last, 0.0)
    if relative is None:
        relative = len(first) > 1 and (last - first).max() < 0.5 * (last.max() - first.min())
    return first if relative else np.zeros_like(first)


def epoch_shift(samples: Samples, unit: str) -> np.ndarray:
    """What to add to coordinates (…, d) so that dates count from the epoch of ``unit``; 0 if one has no dates."""
    found, clock, shift = dated_axis(samples.coord_names, samples.units), Clock.parse(unit), np.zeros(samples.d)
    if found is not None and clock is not None:
        shift[found[0]] = found[1].shift_to(clock)
    return shift


def rebased(samples: Samples, unit: str, relative: bool) -> Samples:
    """The same samples with dates that count from the epoch of ``unit``; unchanged if one of both has no dates.

    ``relative`` says that coordinates count from the beginning of each sample: then `origin` takes up the difference.
    """
    found = dated_axis(samples.coord_names, samples.units)
    if found is None or not unit or date_unit(samples.coord_names, samples.units) == unit:
        return samples
    units = samples.units | {samples.coord_names[found[0]]: unit}
    part = "origin" if relative else "coords"
    return samples.replace(**{part: getattr(samples, part) + epoch_shift(samples, unit)}, units=units)
