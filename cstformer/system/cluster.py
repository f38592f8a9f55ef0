"""Compute on a Dask cluster, given the address of its scheduler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cstformer.errors import CSTError
from cstformer.system.extras import missing


@contextmanager
def dask_cluster(scheduler: str | None) -> Iterator[Any]:
    """Let Dask compute on the cluster at this address and yield its client; None computes on this machine.

    If a worker dies, another one repeats its task. All workers must see the same files.
    """
    if scheduler is None:
        yield None
        return
    try:
        from distributed import Client, KilledWorker
    except ImportError as error:
        raise missing(error, "scheduler=") or error from error
    try:
        client = Client(scheduler, timeout=10)
    except (OSError, ValueError) as error:
        raise CSTError(f"scheduler {scheduler}: no Dask cluster answers there ({error})") from error
    try:
        with client, client.as_current():
            yield client
    except KilledWorker as error:
        raise CSTError(
            f"workers of {scheduler} died repeatedly on one task (out of memory?); run the same command to go on"
        ) from error
    except TypeError as error:
        if "pickle" not in str(error) and "serialize" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise CSTError(f"this file cannot be sent to a cluster ({reason}); store it as Zarr first") from error
