"""Data sets made and cleaned on a Dask cluster: the same numbers, also when a worker dies midway."""

import os
import signal
import threading
import time

import numpy as np
import pytest
import zarr

from cstformer.datasets.calcium import preprocess as chain
from cstformer.datasets.calcium.preprocess import Preprocessing, preprocess
from cstformer.datasets.calcium.reading import open_recording
from cstformer.datasets.calcium.simulator import CalciumSimulation
from cstformer.datasets.navier_stokes import Law, make_navier_stokes
from cstformer.datasets.navier_stokes_reader import Solutions
from cstformer.errors import CSTError
from cstformer.system.cluster import dask_cluster

distributed = pytest.importorskip("distributed")
SETTINGS = Preprocessing(components=2)


def arrays(path):
    return {name: array[...] for name, array in zarr.open_group(path, mode="r").arrays()}


def same(a, b):
    assert arrays(a).keys() == arrays(b).keys()
    for name, array in arrays(a).items():
        np.testing.assert_allclose(arrays(b)[name], array, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.fixture
def here():
    options = {"processes": False, "dashboard_address": ":0", "protocol": "inproc://"}
    with distributed.LocalCluster(n_workers=1, threads_per_worker=2, **options) as cluster:
        yield cluster.scheduler_address


def test_a_recording_is_made_and_cleaned_alike(here, tmp_path):
    made = CalciumSimulation(minutes=0.5, size=16, dropped=0.01)
    made.save(tmp_path / "raw.zarr")
    made.save(tmp_path / "there.zarr", scheduler=here)
    same(tmp_path / "raw.zarr", tmp_path / "there.zarr")
    for name, scheduler in (("clean.zarr", None), ("clean there.zarr", here)):
        preprocess(open_recording(tmp_path / "raw.zarr"), tmp_path / name, SETTINGS, scheduler=scheduler)
    same(tmp_path / "clean.zarr", tmp_path / "clean there.zarr")
    assert not list(tmp_path.glob(".stage*"))


def test_what_cannot_travel_and_workers_that_die_again_and_again_are_named():
    with (
        pytest.raises(CSTError, match="cannot be sent to a cluster"),
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0", protocol="inproc://") as cluster,
        dask_cluster(cluster.scheduler_address),
    ):
        raise TypeError("h5py objects cannot be pickled")
    with (
        pytest.raises(CSTError, match="died repeatedly on one task"),
        distributed.LocalCluster(n_workers=0, processes=False, dashboard_address=":0", protocol="inproc://") as cluster,
        dask_cluster(cluster.scheduler_address),
    ):
        raise distributed.KilledWorker("task", None, 4)


def kill_one(cluster, when) -> threading.Thread:
    """Kill one of the workers with SIGKILL, as soon as ``when`` is true."""

    def act() -> None:
        while not when():
            time.sleep(0.02)
        os.kill(cluster.workers[0].process.pid, signal.SIGKILL)

    thread = threading.Thread(target=act)
    thread.start()
    return thread


@pytest.fixture
def two():
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster:
        yield cluster


@pytest.mark.long
def test_solutions_survive_a_worker_that_dies_midway(two, tmp_path):
    law, path = Law(samples=80, until=5, every=1, size=64), tmp_path / "there.zarr"
    finished = path / "finished" / "c"
    killer = kill_one(two, lambda: finished.exists() and len(list(finished.iterdir())) >= 2)
    assert make_navier_stokes(path, law, scheduler=two.scheduler_address, progress=False) == law.samples
    killer.join()
    make_navier_stokes(tmp_path / "here.zarr", law, jobs=1, progress=False)
    np.testing.assert_array_equal(Solutions(path).frames(), Solutions(tmp_path / "here.zarr").frames())


@pytest.mark.long
def test_cleaning_survives_a_worker_that_dies_midway(two, tmp_path, monkeypatch):
    CalciumSimulation(minutes=2, size=64).save(tmp_path / "raw.zarr")
    preprocess(open_recording(tmp_path / "raw.zarr"), tmp_path / "here.zarr", SETTINGS)
    monkeypatch.setattr(chain, "STRIP_BYTES", 2**16)  # many strips

    def begun() -> bool:
        return any(len(list(folder.rglob("c/*/*/*"))) >= 4 for folder in tmp_path.glob(".there*/frames"))

    killer = kill_one(two, begun)
    preprocess(
        open_recording(tmp_path / "raw.zarr"), tmp_path / "there.zarr", SETTINGS, scheduler=two.scheduler_address
    )
    killer.join()
    same(tmp_path / "here.zarr", tmp_path / "there.zarr")
