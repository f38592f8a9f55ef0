"""Samples of several sources in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from cstformer.data.arrays import pad
from cstformer.data.covariates import joined_covariates
from cstformer.data.dates import date_unit, rebased
from cstformer.errors import CSTError

if TYPE_CHECKING:
    from cstformer.data.samples import Samples


def concatenated(parts: Sequence[Samples]) -> Samples:
    """All samples of all parts, padded to the longest; see `Samples.concatenate`."""
    if not parts:
        raise CSTError("concatenate got no parts; pass at least one Samples")
    first = parts[0]
    unit = date_unit(first.coord_names, first.units)
    parts = [rebased(part, unit, relative=bool(part.origin.any())) for part in parts]
    known = joined_covariates(parts)
    for i, part in enumerate(parts):
        for name in ("coord_names", "value_names", "units", "layout", "calendar"):
            if getattr(part, name) != getattr(first, name):
                raise CSTError(f"part {i} has {name} {getattr(part, name)}, but part 0 has {getattr(first, name)}")
    n = max(part.n for part in parts)
    ids: list[int | str] | None = [i for part in parts for i in part.sample_ids]
    if ids and all(isinstance(i, int) for i in ids) and len(set(ids)) < len(ids):
        ids = None
    coords, values = (pad([a for p in parts for a in getattr(p, k)], n) for k in ("coords", "values"))
    seen = pad([a for p in parts for a in p.observed], n, False)
    origin = np.concatenate([part.origin for part in parts])
    window = first.window if all(part.window == first.window for part in parts) else None
    return first.replace(
        coords=coords, values=values, observed=seen, origin=origin, sample_ids=ids, window=window, **known
    )
