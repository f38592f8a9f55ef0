"""Half an hour of fitting, answering, saving and loading, over and over: memory stays flat."""

import gc
import resource
import time
from pathlib import Path

import numpy as np
import pytest
from small_models import blob, waves

from cstformer import CST, Samples, frames_to_samples

MINUTES = 30


def resident() -> float:
    """Megabytes that this process has in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20


def cycle(folder: Path, number: int) -> None:
    curves, clips = waves(8, seed=number), frames_to_samples(blob(6, 8, 8) + number, (4, 4))
    for samples, at in ((curves, np.linspace(2.2, 4.6, 500)), (clips, clips.coords[0, ::5])):
        CST.preset("smoke", steps=6, seed=number).fit(samples, state=folder / "state").save(folder / "model")
        (folder / "state").unlink()
        model = CST.load(folder / "model")
        model.predict(samples, at)
        model.derivative(samples, at, (1,) * samples.d)
        model.attention(samples, at[:5])
    for suffix in ("npz", "csv", "nc", "zarr"):
        curves.save(folder / f"a.{suffix}")
        Samples.load(folder / f"a.{suffix}")


@pytest.mark.long
def test_memory_stays_flat(tmp_path):
    """The first fifth of the time is for libraries to load and arrays to find their sizes."""
    began, minutes, megabytes = time.monotonic(), [], []
    while not minutes or minutes[-1] < MINUTES:
        cycle(tmp_path, len(minutes))
        gc.collect()
        minutes.append((time.monotonic() - began) / 60)
        megabytes.append(resident())
    late = np.array(minutes) > MINUTES / 5
    slope = np.polyfit(np.array(minutes)[late], np.array(megabytes)[late], 1)[0]
    print(f"{len(minutes)} cycles in {minutes[-1]:.1f} minutes: {megabytes[-1]:.0f} MB, {slope:+.3f} MB a minute")
    assert late.sum() > 20
    assert slope < 0.5
