"""Computing on a Dask cluster, where somebody gives the address of its scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cstformer.errors import CSTError


@contextmanager
def dask_cluster(scheduler: str | None) -> Iterator[Any]:
    """Let Dask compute on the cluster at this address, whose client this gives; None: on this machine.

    A task whose worker dies is done again by another one. The cluster must see the same files.
    """
    if scheduler is None:
        yield None
        return
    try:
        from distributed import Client, KilledWorker
    except ImportError as error:
        raise CSTError("scheduler= needs Dask; pip install cstformer[cluster]") from error
    try:
        client = Client(scheduler, timeout=10)
    except (OSError, ValueError) as error:
        raise CSTError(f"scheduler {scheduler}: no Dask cluster answers there ({error})") from error
    try:
        with client, client.as_current():
            yield client
    except KilledWorker as error:
        raise CSTError(
            f"workers of {scheduler} died again and again over one task (memory?); run the same command to go on"
        ) from error
    except TypeError as error:
        if "pickle" not in str(error) and "serialize" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise CSTError(f"this file cannot be sent to a cluster ({reason}); store it as Zarr first") from error
