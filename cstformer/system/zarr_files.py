"""The only way to open an existing Zarr store, so that no reader can be made to unpickle one.

Zarr stores name the codecs that decode their chunks, and one of them is pickle, which runs code. All modules open
stores here, before any chunk is decoded; a test checks that none of them calls ``zarr.open`` by itself.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from cstformer.errors import CSTError


def open_zarr(path: str | os.PathLike[str], *, writable: bool = False) -> Any:
    """Open an existing Zarr array or group; refuse one with a pickle codec.

    ``writable`` allows changes to the arrays that the store has.
    """
    import zarr

    # Consolidated metadata is a copy at the root. It is ignored, because the copy could hide the codec of an array.
    node: Any = zarr.open(Path(path), mode="r+" if writable else "r", use_consolidated=False)
    arrays = {"": node} if isinstance(node, zarr.Array) else dict(node.members(max_depth=None))
    for name, array in arrays.items():
        if "pickle" in json.dumps(array.metadata.to_dict() | {"attributes": {}}, default=str).lower():
            raise CSTError(f"{path}: array {name!r} is stored by pickle, which could run code; save numbers")
    return node


def open_zarr_dataset(path: str | os.PathLike[str], **options: Any) -> Any:
    """Open a Zarr group as an xarray Dataset, unread; refuse one with a pickle codec.

    ``options`` go to `xarray.open_dataset`.
    """
    import xarray as xr

    open_zarr(path)
    return xr.open_dataset(path, engine="zarr", consolidated=False, chunks=None, **options)
