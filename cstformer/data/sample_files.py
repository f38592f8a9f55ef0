"""Files of `Samples`: the suffix chooses npz, a table, NetCDF or Zarr.

Readers return the keyword arguments of `Samples`, so that this module does not import it.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cstformer.data.covariates import chosen_covariates
from cstformer.data.dates import dated_axis
from cstformer.data.grids import KNOWN, OURS, known_meta, open_xarray, samples_from_dataset, samples_to_dataset
from cstformer.data.grouping import Group
from cstformer.data.layout import PatchLayout
from cstformer.data.table_files import TABLES, TextFormat, file_suffix, read_table
from cstformer.data.tables import samples_from_table, samples_to_table
from cstformer.errors import CSTError, CSTWarning, unknown
from cstformer.system.atomic import atomic_path
from cstformer.system.extras import missing, need
from cstformer.system.files import read_npz
from cstformer.system.targets import check_replaceable

if TYPE_CHECKING:
    from cstformer.data.samples import Samples

SUFFIXES = (".npz", *TABLES, ".nc", ".zarr")
WRITTEN = tuple(suffix for suffix in SUFFIXES if suffix != ".xlsx")
BOUNDS = ("lower", "upper")
"""Keys of an npz for the intervals of answers, which `Samples` does not read."""
_META = ("coord_names", "value_names", "sample_ids", "units", "origin", "layout", *KNOWN)


def samples_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix, in lower case; an error if no such file can hold samples."""
    suffix = file_suffix(path)
    if suffix not in SUFFIXES:
        raise CSTError(f"unknown kind of file for samples ({path}): {suffix!r}; samples are in {', '.join(SUFFIXES)}")
    return suffix


def check_target(path: str | os.PathLike[str]) -> None:
    """Refuse a file that `write_samples` cannot write, before the work whose result it is to hold."""
    suffix = samples_suffix(path)
    if suffix not in WRITTEN:
        raise CSTError(f"{path}: Excel files are only read; write one of {', '.join(WRITTEN)}")
    modules = {".parquet": ["pyarrow"], ".nc": ["xarray", "netCDF4"], ".zarr": ["xarray", "zarr"]}
    need(*modules.get(suffix, []), for_what=f"{path}: writing {suffix}")


def read_samples(
    path: Path,
    coords: Sequence[str] | None,
    values: Sequence[str] | None,
    covariates: Sequence[str] | None,
    relative: bool | None,
    group: Group,
    form: TextFormat,
    max_bytes: int,
) -> dict[str, Any]:
    """Arguments of `Samples` from a file; see `Samples.load`."""
    suffix = samples_suffix(path)
    if suffix == ".npz":
        if coords is not None or values is not None:
            raise CSTError("coords= and values= choose columns and variables; an .npz has fixed keys")
        return chosen_covariates(_from_npz(read_npz(path, max_bytes), path), covariates)
    if suffix in (".nc", ".zarr"):
        return samples_from_dataset(open_xarray(path, max_bytes), coords, values, covariates, max_bytes, group)
    frame = read_table(path, form, group)
    return samples_from_table(frame, coords, values, covariates, relative, group, max_bytes)


def write_samples(samples: Samples, path: str | os.PathLike[str], **bounds: np.ndarray) -> None:
    """Write `samples` atomically; see `Samples.save`. An npz also holds ``bounds``: arrays of `BOUNDS`."""
    check_target(path)
    suffix = samples_suffix(path)
    if suffix in TABLES and _lost_in_tables(samples):
        warnings.warn(
            f"{path}: a table keeps neither the origin of windows nor the patch layout nor the calendar; .npz, .nc, "
            ".zarr do",
            CSTWarning,
            stacklevel=3,
        )
    if suffix == ".zarr":
        check_replaceable(path, OURS)
    with atomic_path(path) as tmp:
        try:
            if suffix == ".npz":
                arrays = {name: getattr(samples, name) for name in ("coords", "values", "observed")}
                if samples.covariate_names:
                    arrays["covariates"] = samples.covariates
                np.savez(tmp, meta=np.array(json.dumps(_meta(samples))), **(arrays | bounds))
            elif suffix == ".parquet":
                samples_to_table(samples).to_parquet(tmp, index=False, engine="pyarrow")
            elif suffix == ".nc":
                samples_to_dataset(samples).to_netcdf(tmp, engine="netcdf4")
            elif suffix == ".zarr":
                # Format 2, because format 3 has no settled way yet to store texts (sample ids).
                samples_to_dataset(samples).to_zarr(tmp, zarr_format=2, consolidated=False)
            else:
                packed = "gzip" if suffix.endswith(".gz") else None
                sep = "\t" if suffix.startswith(".tsv") else ","
                samples_to_table(samples).to_csv(tmp, index=False, sep=sep, compression=packed)
        except ImportError as error:
            raise missing(error, f"{path}: writing {suffix}") or error from error
        except (RuntimeError, ValueError) as error:  # how the NetCDF and Arrow libraries report what they refuse
            raise CSTError(f"cannot write {path}: {error}") from error


def _lost_in_tables(samples: Samples) -> bool:
    """Whether samples have what a table cannot hold; the origin of dates is part of the timestamps."""
    dated = dated_axis(samples.coord_names, samples.units)
    origin = samples.origin if dated is None else np.delete(samples.origin, dated[0], axis=1)
    return bool(origin.any()) or samples.layout is not None or bool(samples.calendar)


def _meta(samples: Samples) -> dict[str, Any]:
    """Everything but the large arrays, for JSON."""
    return {
        "coord_names": samples.coord_names,
        "value_names": samples.value_names,
        "sample_ids": samples.sample_ids,
        "units": samples.units,
        "origin": samples.origin.tolist(),
        "layout": samples.layout and samples.layout.to_dict(),
        **known_meta(samples),
    }


def _from_npz(arrays: dict[str, np.ndarray], path: Path) -> dict[str, Any]:
    keys = set(arrays)
    if not {"coords", "values"} <= keys <= {"coords", "values", "observed", "covariates", "meta", *BOUNDS}:
        raise CSTError(
            f"{path} must have the keys coords and values, may have observed, covariates and meta, but has: "
            f"{', '.join(sorted(keys)) or 'none'}; a movie is read by load_movie"
        )
    meta: dict[str, Any] = {}
    if "meta" in arrays:
        try:
            meta = json.loads(str(arrays["meta"]))
            if unexpected := set(meta) - set(_META):
                raise unknown(f"entry of meta in {path}", unexpected.pop(), _META)
            meta["layout"] = PatchLayout.from_dict(meta["layout"]) if meta.get("layout") else None
        except (json.JSONDecodeError, TypeError, AttributeError) as error:
            raise CSTError(f"{path}: the key meta is not the JSON that save writes: {error}") from error
    return {k: arrays.get(k) for k in ("coords", "values", "observed", "covariates")} | meta
