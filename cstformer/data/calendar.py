r"""The calendar: hour of the day, day of the week and day of the year as smooth functions of a dated time axis.

A calendar feature of period P is the pair :math:`\sin\theta, \cos\theta` of the angle

.. math:: \theta_i(t) = \frac{2\pi}{P} (t + o_i + e)

of a coordinate t of sample i. o_i is its `origin`, and e the time from 1 January 2001, a Monday, 0 h to the epoch of
the axis, all in hours. In the model's units, t = low + span·x, it is :math:`\theta_i = \omega x + \varphi_i`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cstformer.data.dates import Clock, dated_axis
from cstformer.errors import CSTError, unknown

if TYPE_CHECKING:
    from cstformer.data.samples import Samples

PERIODS = {"hour": 24.0, "weekday": 7 * 24.0, "day": 365.2425 * 24.0}
"""Period in hours of hour of the day, day of the week and day of the (mean Gregorian) year."""
REFERENCE = "2001-01-01T00:00"  # where all three begin: a Monday, 1 January, midnight


def checked_calendar(names: str | Sequence[str] | None, dated: tuple[int, Clock] | None) -> tuple[str, ...]:
    """Names of calendar features, which need a dated axis."""
    chosen = (names,) if isinstance(names, str) else tuple(names or ())
    for name in chosen:
        if name not in PERIODS:
            raise unknown("calendar feature", name, PERIODS)
    if chosen and dated is None:
        raise CSTError(
            f"calendar {list(chosen)} needs dates as a time axis: a column of timestamps, or units such as "
            "{'t': 'hours since 2024-05-01T00:00:00'}"
        )
    return tuple(name for name in PERIODS if name in chosen)


@dataclass(frozen=True)
class Calendar:
    """Calendar features of a fitted model.

    Attributes
    ----------
    names : features, see `PERIODS`
    axis : the coordinate axis of time
    rates : (k,), ω in radians per unit of the model
    """

    names: tuple[str, ...] = ()
    axis: int = 0
    rates: tuple[float, ...] = ()

    @classmethod
    def of(cls, samples: Samples, span: np.ndarray) -> Calendar:
        """Take over the calendar of training samples; ``span`` (d,) is the extent of their coordinates."""
        found = dated_axis(samples.coord_names, samples.units)
        if not samples.calendar or found is None:
            return cls()
        axis, clock = found
        rates = (2 * math.pi * float(span[axis]) * clock.hours / PERIODS[name] for name in samples.calendar)
        return cls(samples.calendar, axis, tuple(rates))

    def phases(self, samples: Samples, low: np.ndarray) -> Float[np.ndarray, "N k"]:
        """φ of each sample and feature, in [0, 2π); ``low`` (d,) is the coordinate of x = 0.

        >>> from cstformer.data.samples import Samples
        >>> units = {"t": "hours since 2024-05-01T06:00:00"}
        >>> s = Samples([0.0, 2.0], [[1.0, 2.0]], units=units, calendar="hour")
        >>> (Calendar.of(s, np.array([2.0])).phases(s, np.array([0.0])) / math.pi).tolist()
        [[0.5]]
        """
        found = dated_axis(samples.coord_names, samples.units)
        if found is None or found[0] != self.axis:
            raise CSTError(
                f"the model was fitted with the calendar {', '.join(self.names)}; these samples have no dates "
                "as a time axis: their unit must be such as 'hours since 2024-05-01T00:00:00'"
            )
        axis, clock = found
        hours = (samples.origin[:, axis] + low[axis]) * clock.hours + clock.hours_since(REFERENCE)  # (N,)
        periods = np.array([PERIODS[name] for name in self.names])
        return 2 * math.pi * (hours[:, None] / periods % 1.0)

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {"names": self.names, "axis": self.axis, "rates": self.rates}

    @classmethod
    def from_description(cls, about: dict[str, Any]) -> Calendar:
        """From JSON."""
        names, rates = tuple(about["names"]), tuple(float(x) for x in about["rates"])
        if set(names) - set(PERIODS) or len(names) != len(rates) or not all(map(math.isfinite, rates)):
            raise ValueError(f"the calendar {list(names)} is not known or does not fit its rates")
        return cls(names, int(about["axis"]), rates)
