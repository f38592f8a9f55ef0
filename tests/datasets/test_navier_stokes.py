"""The law of the random field, the file that resumes, the same numbers on any workers, and the published format."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import scipy.io

from cstformer import cli
from cstformer.data.patches import samples_to_frames
from cstformer.datasets import navier_stokes
from cstformer.datasets.navier_stokes import AMPLITUDES, Law, initial_vorticity, make_navier_stokes
from cstformer.datasets.navier_stokes_reader import Solutions
from cstformer.errors import CSTError

pytest.importorskip("zarr")
SMALL = Law(samples=23, until=1.0, every=0.5, size=16, seed=4)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A small file, made in this process."""
    path = tmp_path_factory.mktemp("flow") / "small.zarr"
    assert make_navier_stokes(path, SMALL, jobs=1, progress=False) == 23
    return path


@pytest.mark.parametrize("amplitude, sd", [("2021", 0.262), ("current", 0.185)])
def test_spectrum_of_the_random_field(amplitude, sd):
    # w₀ = Re Σ σ_k z_k e^{2πik·x}: its coefficient at k ≠ 0 has E|c_k|² = σ_k² Var(z), its variance is their sum.
    law = Law(amplitude=amplitude)
    w = np.stack([initial_vorticity(i, law) for i in range(200)])
    power = (np.abs(np.fft.fft2(w, norm="forward")) ** 2).mean(0)
    k2 = np.fft.fftfreq(64, 1 / 64)[:, None] ** 2 + np.fft.fftfreq(64, 1 / 64) ** 2
    law_power = 2 * 343 * (4 * np.pi**2 * k2 + 49) ** -2.5 * AMPLITUDES[amplitude] ** 2
    assert power[0, 0] < 1e-30
    for low, high in [(1, 2), (2, 8), (8, 50), (50, 400)]:
        ring = (k2 >= low) & (k2 < high)
        # Each of the waves and its opposite share one coefficient: a relative error of 1 / √(200 · waves / 2).
        assert power[ring].sum() == pytest.approx(law_power[ring].sum(), rel=4 / np.sqrt(200 * 2))
    assert law_power[k2 > 0].sum() ** 0.5 == pytest.approx(sd, abs=1e-3)


def test_amplitudes_differ_by_root_two_and_grids_not_at_all():
    one = initial_vorticity(7, Law(seed=1))
    np.testing.assert_allclose(one, np.sqrt(2) * initial_vorticity(7, Law(seed=1, amplitude="current")), atol=1e-15)
    fine = np.fft.fft2(initial_vorticity(7, Law(seed=1, size=128)), norm="forward")
    coarse = np.fft.fft2(one, norm="forward")
    np.testing.assert_allclose(coarse[:32, :32], fine[:32, :32], atol=1e-16)
    np.testing.assert_allclose(coarse[-31:, -31:], fine[-31:, -31:], atol=1e-16)
    assert np.abs(one - initial_vorticity(8, Law(seed=1))).max() > 0.1
    assert np.abs(one - initial_vorticity(7, Law(seed=2))).max() > 0.1


def test_forcing_by_hand():
    f = navier_stokes.forcing(8)
    np.testing.assert_allclose([f[0, 0], f[2, 0], f[0, 4], f[3, 3]], [0.1, 0.1, -0.1, -0.1], atol=1e-15)


def test_production_is_accurate_at_time_20():
    law = Law(until=20.0, every=20.0)
    fine = Law(until=20.0, every=20.0, step=1 / 40)
    _, w = navier_stokes.solutions([0, 1], law)
    _, truth = navier_stokes.solutions([0, 1], fine, dtype="float64")
    error = np.linalg.norm(w - truth, axis=(2, 3)) / np.linalg.norm(truth, axis=(2, 3))
    assert error.max() < 5e-6
    assert truth.std() > 0.7


def test_the_file_is_readable_by_xarray(made):
    xarray = pytest.importorskip("xarray")
    data = xarray.open_zarr(made, consolidated=False, chunks=None)
    assert data["vorticity"].dims == ("sample", "time", "x", "y")
    assert data["vorticity"].shape == (23, 2, 16, 16)
    assert data["time"].values.tolist() == [0.5, 1.0]
    assert data["x"].values[1] == 1 / 16
    assert data["vorticity"].attrs["units"] == "1"
    initial = np.stack([initial_vorticity(i, SMALL) for i in range(23)])
    np.testing.assert_array_equal(data["initial"].values, initial.astype(np.float32))
    assert np.isfinite(data["vorticity"].values).all()


def test_workers_do_not_change_the_numbers(made, tmp_path):
    make_navier_stokes(tmp_path / "two.zarr", SMALL, jobs=2, progress=False)
    np.testing.assert_array_equal(Solutions(tmp_path / "two.zarr").frames(), Solutions(made).frames())


def test_a_dask_cluster_does_not_change_the_numbers(made, tmp_path):
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0", protocol="inproc://"
    ) as cluster:
        path = tmp_path / "cluster.zarr"
        make_navier_stokes(path, SMALL, scheduler=cluster.scheduler_address, progress=False)
    np.testing.assert_array_equal(Solutions(path).frames(), Solutions(made).frames())


def test_no_cluster_at_the_address(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    with pytest.raises(CSTError, match="scheduler nowhere: no Dask cluster answers there"):
        make_navier_stokes(tmp_path / "a.zarr", SMALL, scheduler="nowhere", progress=False)
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(CSTError, match=r"needs Dask; pip install \"cstformer\[cluster\]\""):
        make_navier_stokes(tmp_path / "a.zarr", SMALL, scheduler="tcp://localhost:1", progress=False)


def test_goes_on_after_kill_9(made, tmp_path):
    path = tmp_path / "killed.zarr"
    # The second block never ends by itself: the kill finds the process at work, with one block written.
    script = f"""
import time
from cstformer.datasets import navier_stokes as ns
once = ns.solutions
ns.solutions = lambda members, law: once(members, law) if members[0] == 0 else time.sleep(600)
ns.make_navier_stokes({str(path)!r}, ns.Law(samples=23, until=1.0, every=0.5, size=16, seed=4), jobs=1, progress=False)
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    try:
        deadline = time.monotonic() + 60
        while not (path / "finished" / "c" / "0").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    with pytest.raises(CSTError, match=r"killed.zarr: only 10 of 23 solutions are made; run the command .* again"):
        Solutions(path)
    (path / "vorticity" / "c" / "1.0f.partial").write_bytes(b"torn")
    assert make_navier_stokes(path, SMALL, jobs=1, progress=False) == 13
    np.testing.assert_array_equal(Solutions(path).frames(), Solutions(made).frames())
    assert not list(path.rglob("*.partial"))
    assert make_navier_stokes(path, SMALL, jobs=1, progress=False) == 0


def test_another_law_is_not_mixed_in(made, tmp_path):
    with pytest.raises(CSTError, match=r"holds another set \(seed 4, not 5\); choose another name or remove it"):
        make_navier_stokes(made, Law(samples=23, until=1.0, every=0.5, size=16, seed=5), progress=False)
    (tmp_path / "other.zarr").mkdir()
    with pytest.raises(CSTError, match="is no Navier–Stokes set"):
        make_navier_stokes(tmp_path / "other.zarr", SMALL, progress=False)
    with pytest.raises(CSTError, match=r"ends in \.zarr"):
        make_navier_stokes(tmp_path / "a.npz", SMALL, progress=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"samples": 0}, "samples must be a whole number from 1"),
        ({"size": 512}, "size must be a whole number from 8 to 256, got 512"),
        ({"seed": -1}, "seed must be"),
        ({"amplitude": "curent"}, "did you mean 'current'"),
        ({"every": 0.0}, "until and every must be positive"),
        ({"until": 0.5}, "until the larger; got 0.5 and 1.0"),
    ],
)
def test_bad_laws(changes, message):
    with pytest.raises(CSTError, match=message):
        Law(**changes)


def test_chosen_dynamics_and_times(made):
    flows = Solutions(made)
    everything = flows.frames()
    assert (len(flows), flows.shape, flows.times.tolist()) == (23, (23, 2, 16, 16), [0.5, 1.0])
    np.testing.assert_array_equal(flows.frames([21, 3], [1.0]), everything[[21, 3], 1:])
    np.testing.assert_array_equal(flows.frames(slice(4, 6)), everything[4:6])
    np.testing.assert_array_equal(flows.frames([1, 2], [[0.5], [1.0]])[:, 0], everything[[1, 2], [0, 1]])


def test_samples_of_patches(made):
    flows = Solutions(made)
    together = flows.samples([5, 2], [0.5, 1.0], patch=(4, 8))
    assert together.sample_ids == (5, 2)
    np.testing.assert_array_equal(samples_to_frames(together)[..., 0], flows.frames([5, 2]))
    apart = flows.samples([5, 2], [[0.5], [1.0]], patch=(4, 8))
    assert apart.coords[0, 0].tolist() == [0.5, 1.5, 3.5]
    assert apart.coords[1, 0].tolist() == [1.0, 1.5, 3.5]
    np.testing.assert_array_equal(samples_to_frames(apart)[:, 0, ..., 0], flows.frames()[[5, 2], [0, 1]])


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (([23],), "do not fit 23 solutions"),
        (([],), "choose none of the 23"),
        ((None, [0.7]), "no frame at time 0.7; the file has 2 times from 0.5 to 1"),
        ((None, [[0.5]]), r"times must be \(T,\) or \(23, T\)"),
    ],
)
def test_bad_choices(made, choice, message):
    with pytest.raises(CSTError, match=message):
        Solutions(made).frames(*choice)


@pytest.mark.parametrize("version", ["5", "7.3"])
def test_published_mat_file(tmp_path, version):
    u = np.random.default_rng(0).normal(size=(5, 4, 6, 3)).astype(np.float32)  # N, nx, ny, T
    path = tmp_path / "ns.mat"
    if version == "5":
        scipy.io.savemat(path, {"u": u, "a": u[..., 0], "t": np.array([[2.0, 3.0, 4.0]])})
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path, "w", userblock_size=512) as file:  # MATLAB puts its own header in front
            file["u"] = u.transpose()
            file["t"] = np.array([[2.0], [3.0], [4.0]])
        with path.open("r+b") as file:
            file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM")
    flows = Solutions(path)
    assert (flows.shape, flows.times.tolist()) == ((5, 3, 4, 6), [2.0, 3.0, 4.0])
    np.testing.assert_array_equal(flows.frames(), np.moveaxis(u, -1, 1))
    np.testing.assert_array_equal(flows.frames([4, 1], [4.0, 2.0]), np.moveaxis(u, -1, 1)[[4, 1]][:, [2, 0]])


def test_bad_files(tmp_path):
    scipy.io.savemat(tmp_path / "v.mat", {"v": np.zeros(3)})
    scipy.io.savemat(tmp_path / "big.mat", {"u": np.zeros((2, 4, 4, 3))})
    (tmp_path / "torn.mat").write_bytes(b"torn")
    (tmp_path / "other.zarr").mkdir()
    for name, message in [
        ("v.mat", r"the variable u must be \(N, nx, ny, T\)"),
        ("torn.mat", "cannot read .*torn.mat"),
        ("other.zarr", "no Navier–Stokes set"),
        ("none.mat", "there is no such file"),
    ]:
        with pytest.raises(CSTError, match=message):
            Solutions(tmp_path / name)
    with pytest.raises(CSTError, match="more than max_bytes=100"):
        Solutions(tmp_path / "big.mat", max_bytes=100)


def test_command_line(tmp_path, capsys):
    path = tmp_path / "flow.zarr"
    flags = ["--samples", "3", "--until", "1", "--size", "16", "--amplitude", "current", "--workers", "1", "--quiet"]
    assert cli.main(["data", "make", "navier-stokes", *flags, "--out", str(path)]) == 0
    assert "3 solutions at 1 times, 3 of them now" in capsys.readouterr().out
    assert json.loads((path / "zarr.json").read_text())["attributes"]["navier_stokes"]["amplitude"] == "current"
    assert cli.main(["data", "show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "3 solutions of 1 frames of 16 × 16, ν = 0.001, amplitude current, seed 0" in out
    assert cli.main(["data", "make", "navier-stokes", *flags, "--seed", "1", "--out", str(path)]) == 2
    assert "holds another set (seed 0, not 1)" in capsys.readouterr().err
