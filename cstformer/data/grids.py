"""Grids: NetCDF, Zarr and xarray Datasets to arguments of `Samples` and back."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cstformer.data.arrays import check_size
from cstformer.data.covariates import chosen_covariates
from cstformer.data.dates import dated_axis
from cstformer.data.grouping import Group, is_name_of_ids
from cstformer.data.layout import PatchLayout
from cstformer.data.names import parsed_ids
from cstformer.data.unread import Unread
from cstformer.errors import CSTError, CSTWarning, unknown
from cstformer.system.extras import need
from cstformer.system.files import MAX_BYTES, check_bytes, check_hdf5, readable
from cstformer.system.zarr_files import open_zarr, open_zarr_dataset

if TYPE_CHECKING:
    from cstformer.data.samples import Samples

OURS = "cstformer"
"""Attribute of the datasets that `samples_to_dataset` makes."""

KNOWN = ("covariate_names", "categories", "calendar", "window", "group")
"""What a file says of samples where there is anything to say: of covariates, besides the numbers, of windows,
and of the column that names samples."""


def known_meta(samples: Samples) -> dict[str, Any]:
    """Names and categories of covariates, calendar, window and group, for JSON; nothing where there are none."""
    return {name: value for name in KNOWN if (value := getattr(samples, name))}


def open_xarray(path: Path, max_bytes: int = MAX_BYTES) -> Any:
    """Dataset in memory of a NetCDF or Zarr file; see `open_unread`."""
    with open_unread(path) as data:
        check_bytes(path, data.nbytes, max_bytes)
        return data.load()


@contextmanager
def open_unread(path: Path) -> Iterator[Any]:
    """Dataset of a NetCDF or Zarr file, unread; dates are decoded, except in files that `Samples.save` wrote."""
    with _open_dataset(path, decode_times=False) as raw:
        ours = OURS in raw.attrs
        if ours:
            yield raw
    if not ours:
        with _open_dataset(path, decode_timedelta=False) as decoded:
            yield decoded


@dataclass(frozen=True)
class GridArray(Unread):
    """A variable of a NetCDF or Zarr file, with dates and scaled numbers decoded as they are read."""

    path: Path
    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    chunks: tuple[int, ...] | None

    @classmethod
    def of(cls, path: Path, variable: Any) -> GridArray:
        """The same variable, to be read after its file was closed."""
        stored = variable.encoding.get("chunks") or variable.encoding.get("chunksizes")
        return cls(path, str(variable.name), variable.shape, variable.dtype, stored and tuple(stored))

    def __getitem__(self, index: Any) -> np.ndarray:
        with readable(self.path, "a grid"), open_unread(self.path) as data:
            return np.asarray(data[self.name][index].values)


def _open_dataset(path: Path, **options: Any) -> Any:
    if path.suffix.lower() == ".zarr":
        return open_zarr_dataset(path, **options)
    import netCDF4  # noqa: F401  (its ImportError names the package; that of xarray does not)
    import xarray as xr

    check_hdf5(path)
    return xr.open_dataset(path, engine="netcdf4", **options)


def is_gridded_movie(path: Path) -> bool:
    """Whether a NetCDF file or Zarr group holds frames: arrays of three or four dimensions, none of them `sample`.

    Decided by the headers. Files of `Samples.save` and groups without names of dimensions, other than movies, are not.
    """
    try:
        with _open_dataset(path, decode_times=False) as data:
            shapes = [data[name].dims for name in data.data_vars]
            return OURS not in data.attrs and any(len(dims) in (3, 4) and "sample" not in dims for dims in shapes)
    except KeyError:  # a Zarr group that xarray did not write
        return any(len(array.shape) in (3, 4) for _, array in open_zarr(path).arrays())


def samples_from_dataset(
    data: Any,
    coords: Sequence[str] | None = None,
    values: Sequence[str] | None = None,
    covariates: Sequence[str] | None = None,
    max_bytes: int = MAX_BYTES,
    group: Group = None,
) -> dict[str, Any]:
    """Arguments of `Samples` from a Dataset or DataArray; see `Samples.from_xarray`."""
    data = data.to_dataset(name=data.name or "value") if not hasattr(data, "data_vars") else data
    if OURS in data.attrs:
        return chosen_covariates(_from_own(data), covariates)
    if isinstance(group, str) and group != "sample":
        if group not in data.dims:
            raise unknown("dim in group=", group, map(str, data.dims))
        data = data.rename({group: "sample"})
    known = _covariates(data, covariates)
    data = data.drop_vars(known)
    names, dims = _channels(data, values)
    axes = [str(dim) for dim in dims if dim != "sample"]
    if group is None and coords is None and "sample" not in dims and (ids := [a for a in axes if is_name_of_ids(a)]):
        raise CSTError(
            f"dim {ids[0]!r} looks like the name of samples; say so by group={ids[0]!r}, or group=False if it is a "
            "coordinate axis"
        )
    if coords is not None:
        wanted = [coords] if isinstance(coords, str) else list(coords)
        if sorted(wanted) != sorted(axes):
            raise CSTError(f"coords must name the dims {axes} in the order you want, got {wanted}")
        axes = wanted
    if not axes:
        raise CSTError(f"variable {names[0]!r} has no coordinate dim, only {list(dims)}; add one, e.g. time")
    order = ["sample", *axes] if "sample" in dims else axes
    sizes = [int(data.sizes[axis]) for axis in axes]
    count = int(data.sizes["sample"]) if "sample" in dims else 1
    check_size(count, math.prod(sizes), len(axes), len(names), max_bytes=max_bytes)
    y = np.stack([data[name].transpose(*order).values.astype(np.float64) for name in names], axis=-1)
    y = y if "sample" in dims else y[None]  # (N, *grid, c)
    numbers, axis_units = zip(*(axis_numbers(data, axis) for axis in axes), strict=True)
    x = np.stack(np.meshgrid(*numbers, indexing="ij"), axis=-1).reshape(-1, len(axes))
    return {
        "coords": x[None].repeat(len(y), axis=0),
        "values": y.reshape(len(y), -1, len(names)),
        "coord_names": axes,
        "value_names": names,
        "sample_ids": parsed_ids(data["sample"].values) if "sample" in data.coords and "sample" in dims else None,
        "units": dict(zip(axes, axis_units, strict=True)) | {n: str(data[n].attrs.get("units", "")) for n in names},
        "covariates": known or None,
        "group": group if isinstance(group, str) and group != "sample" else None,
    }


def _covariates(data: Any, covariates: Sequence[str] | None) -> dict[str, np.ndarray]:
    """The variables over `sample` alone that are covariates, by name."""
    names = [covariates] if isinstance(covariates, str) else list(covariates or ())
    for name in names:
        if name not in data.data_vars:
            raise unknown("variable in covariates=", name, map(str, data.data_vars))
        if data[name].dims != ("sample",):
            raise CSTError(f"covariate {name!r} must have the dim 'sample' alone, it has {list(data[name].dims)}")
    return {name: data[name].values for name in names}


def _channels(data: Any, values: Sequence[str] | None) -> tuple[list[str], tuple[Any, ...]]:
    """Names of the variables that are channels, and the dims that all of them have."""
    names = [values] if isinstance(values, str) else list(values or map(str, data.data_vars))
    for name in names:
        if name not in data.data_vars:
            raise unknown("variable in values=", name, map(str, data.data_vars))
    if not names:
        raise CSTError("the dataset has no variables; pass one with at least one data variable")
    dims = max((data[name].dims for name in names), key=len)
    if left_out := [name for name in names if set(data[name].dims) != set(dims)]:
        if values is not None:
            raise CSTError(f"variables {left_out} do not have all the dims {list(dims)}; choose others by values=")
        warnings.warn(f"left out {left_out}, without all the dims {list(dims)}", CSTWarning, stacklevel=4)
        names = [name for name in names if name not in left_out]
    if strange := [name for name in names if data[name].dtype.kind not in "fiub"]:
        raise CSTError(f"variables {strange} are not numbers; choose the numeric ones by values=[...]")
    return names, dims


def axis_numbers(data: Any, axis: str) -> tuple[np.ndarray, str]:
    """Coordinates along a dim as float64, and their unit; dates become hours since the first."""
    x = data[axis].values  # a dim without coordinates gives 0, 1, 2...
    if x.dtype.kind == "M":
        return (x - x[0]) / np.timedelta64(1, "h"), f"hours since {np.datetime_as_string(x[0], unit='s')}"
    if x.dtype.kind == "m":
        return x / np.timedelta64(1, "h"), "hours"
    if x.dtype.kind not in "fiu":
        raise CSTError(f"the coordinates of dim {axis!r} are {x.dtype}, not numbers or dates; convert them first")
    return x.astype(np.float64), str(data[axis].attrs.get("units", ""))


def samples_to_dataset(samples: Samples) -> Any:
    """Dataset with dims (sample, point) and a variable for each coordinate and channel; unobserved values are NaN."""
    need("xarray", for_what="to_xarray")
    import xarray as xr

    arrays: dict[str, Any] = {}
    unit = {name: {"units": text} for name, text in samples.units.items()}
    for k, name in enumerate(samples.coord_names):
        x = np.where(samples.point_observed, samples.coords[..., k], np.nan)
        arrays[name] = (("sample", "point"), x, unit.get(name, {}))
        arrays[f"origin_{name}"] = (("sample",), samples.origin[:, k], unit.get(name, {}))
    for k, name in enumerate(samples.covariate_names):
        arrays[f"covariate_{name}"] = (("sample",), samples.covariates[:, k], unit.get(name, {}))
    for k, name in enumerate(samples.value_names):
        if name in arrays:
            raise CSTError(f"value_names may not use {name!r} in an xarray Dataset; rename it")
        y = np.where(samples.observed[..., k], samples.values[..., k], np.nan)
        arrays[name] = (("sample", "point"), y, unit.get(name, {}))
    meta = {
        "coord_names": samples.coord_names,
        "value_names": samples.value_names,
        "layout": samples.layout and samples.layout.to_dict(),
        **known_meta(samples),
    }
    # An array holds ids of one type: a mixture becomes text, as in a table.
    whole = all(isinstance(i, int) for i in samples.sample_ids)
    ids = list(samples.sample_ids) if whole else np.array([str(i) for i in samples.sample_ids], dtype=object)
    return xr.Dataset(arrays, coords={"sample": ids}, attrs={OURS: json.dumps(meta)})


def answers_to_dataset(answers: Samples, axes: Sequence[np.ndarray] | None, alone: bool) -> Any:
    """Dataset of answers at the same queries of all samples.

    Parameters
    ----------
    answers : Samples
    axes : coordinates along each axis, if the queries are all points of a grid; else the dim is ``point``
    alone : whether the data that were given are one sample, without a dim for samples
    """
    import xarray as xr

    names, first = answers.coord_names, answers.coords[0]
    axis, clock = dated_axis(names, answers.units) or (None, None)
    coords: dict[str, Any] = {}
    for k, name in enumerate(names):
        x = first[:, k] if axes is None else np.asarray(axes[k])
        unit = answers.units.get(name)
        if k == axis and clock is not None:
            x, unit = clock.dates(x).astype("datetime64[ns]"), None
        coords[name] = ("point" if axes is None else name, x, {"units": unit} if unit else {})
    dims = ["point"] if axes is None else list(names)
    shape = [len(first)] if axes is None else [len(x) for x in axes]
    values = answers.values.reshape(len(answers), *shape, answers.c)
    if alone:
        values = values[0]
    else:
        dims = [str(answers.group or "sample"), *dims]
        coords[dims[0]] = list(answers.sample_ids)
    units = answers.units
    arrays = {
        name: (dims, values[..., k], {"units": units[name]} if name in units else {})
        for k, name in enumerate(answers.value_names)
    }
    return xr.Dataset(arrays, coords)


def _from_own(data: Any) -> dict[str, Any]:
    """Inverse of `samples_to_dataset`."""
    try:
        meta = json.loads(data.attrs[OURS])
        coord_names, value_names, layout = meta["coord_names"], meta["value_names"], meta["layout"]
        stacks = [
            np.stack([data[name].values for name in group], axis=-1)
            for group in (coord_names, value_names, [f"origin_{name}" for name in coord_names])
        ]
        units = {name: data[name].attrs.get("units", "") for name in [*coord_names, *value_names]}
        known = {f"covariate_{name}": name for name in meta.get("covariate_names", ())}
        units |= {name: data[key].attrs.get("units", "") for key, name in known.items()}
        covariates = np.stack([data[key].values for key in known], axis=-1) if known else None
    except (KeyError, TypeError, ValueError) as error:
        raise CSTError(f"the dataset is marked as ours but is incomplete: {error}; save it again") from error
    return {
        "coords": stacks[0],
        "values": stacks[1],
        "coord_names": coord_names,
        "value_names": value_names,
        "sample_ids": parsed_ids(data["sample"].values),
        "units": units,
        "origin": stacks[2],
        "layout": PatchLayout.from_dict(layout) if layout else None,
        "covariates": covariates,
        **{name: meta[name] for name in KNOWN if name in meta},
    }
