"""One small recording of two colours, written as every file of the field."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np

FRAMES = np.random.default_rng(0).integers(0, 60000, (6, 2, 5, 4)).astype(np.uint16)
"""(T, colours, H, W)"""
TIMES = np.array([0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.4, 0.45, 0.5, 0.56, 0.6, 0.65])
"""Of the raw frames: two were dropped, one came late."""


def write_dat(folder: Path, frames: np.ndarray = FRAMES) -> Path:
    """Frames (T, C, H, W) as wfield stores them."""
    path = folder / f"cortex_{'_'.join(map(str, frames.shape[1:]))}_{frames.dtype}.dat"
    frames.tofile(path)
    return path


def write_svd(folder: Path, rank: int = 3, colours: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """U (5, 4, rank) and SVT (rank, 6 · colours) of random numbers."""
    rng = np.random.default_rng(1)
    U, SVT = rng.normal(size=(5, 4, rank)), rng.normal(size=(rank, 6 * colours))
    np.save(folder / "U.npy", U)
    np.save(folder / "SVT.npy", SVT)
    return U, SVT


def write_nwb(path: Path, *series: tuple[str, float | None, np.ndarray, dict[str, Any]]) -> None:
    """Series of name, excitation wavelength (None: an `ImageSeries`), frames (T, H, W) and clock; and a stimulus."""
    import pynwb

    nwb = pynwb.NWBFile("gratings", "one", datetime.datetime(2023, 1, 1, tzinfo=datetime.UTC))
    device = nwb.create_device("microscope")
    for name, nm, frames, clock in series:
        data = frames.transpose(0, 2, 1)  # the schema wants [frame][x][y]
        if nm is None:
            nwb.add_acquisition(pynwb.image.ImageSeries(name=name, data=data, unit="counts", **clock))
            continue
        plane = nwb.create_imaging_plane(
            name=f"plane {name}",
            optical_channel=pynwb.ophys.OpticalChannel(name="c", description="d", emission_lambda=520.0),
            description="cortex",
            device=device,
            excitation_lambda=nm,
            indicator="GCaMP6s",
            location="dorsal cortex",
            grid_spacing=[2e-5, 2e-5],
            grid_spacing_unit="meters",
        )
        nwb.add_acquisition(
            pynwb.ophys.OnePhotonSeries(name=name, data=data, imaging_plane=plane, unit="counts", **clock)
        )
    nwb.add_trial_column("contrast", "per cent")
    nwb.add_trial(start_time=0.1, stop_time=0.3, contrast=20.0)
    with pynwb.NWBHDF5IO(path, "w") as io:
        io.write(nwb)
