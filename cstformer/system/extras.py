"""Optional packages: which extra brings each, and the one message for those that are missing."""

from __future__ import annotations

import importlib.util

from cstformer.errors import CSTError

# Module: name of its package, and the extra of cstformer that brings it.
EXTRAS = {
    "av": ("av", "video"),
    "bokeh": ("bokeh", "explorer"),
    "dask": ("dask", "neuro"),
    "distributed": ("Dask", "cluster"),
    "h5py": ("h5py", "files"),
    "netCDF4": ("netCDF4", "files"),
    "neuralop": ("neuraloperator", "rivals"),
    "openpyxl": ("openpyxl", "files"),
    "panel": ("panel", "explorer"),
    "PIL": ("pillow", "video"),
    "pyarrow": ("pyarrow", "files"),
    "pynwb": ("pynwb", "neuro"),
    "pypots": ("PyPOTS", "peers"),
    "skimage": ("scikit-image", "video"),
    "tifffile": ("tifffile", "files"),
    "torchdiffeq": ("torchdiffeq", "rivals"),
    "tornado": ("tornado", "explorer"),
    "xarray": ("xarray", "files"),
    "zarr": ("zarr", "files"),
}


def need(*modules: str, for_what: str) -> None:
    """Raise an error that says how to install the first of these modules that is missing.

    >>> need("numpy", for_what="arithmetic")
    """
    for module in modules:
        if importlib.util.find_spec(module) is None:
            raise CSTError(_message(module, for_what))


def missing(error: ImportError, for_what: str) -> CSTError | None:
    """The error to raise for a failed import; None if no extra brings what was imported.

    Some libraries raise an ImportError without the name of the module; then their message is searched for it.

    >>> print(missing(ImportError("No module named 'zarr.codecs'", name="zarr.codecs"), "writing x.zarr"))
    writing x.zarr needs zarr; pip install "cstformer[files]"
    """
    found: str | None = (error.name or "").split(".")[0]
    if not found:
        found = next((module for module in EXTRAS if module.lower() in str(error).lower()), None)
    return CSTError(_message(found, for_what)) if found is not None and found in EXTRAS else None


def _message(module: str, for_what: str) -> str:
    package, extra = EXTRAS[module]
    return f'{for_what} needs {package}; pip install "cstformer[{extra}]"'
