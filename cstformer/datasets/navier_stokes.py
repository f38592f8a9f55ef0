r"""The Navier–Stokes data set of the Fourier neural operator: its equation, and a generator that resumes.

    ∂w/∂t + u·∇w = ν Δw + f,   ν = 10⁻³,   f = 0.1 (sin 2π(x + y) + cos 2π(x + y)),   on the unit torus,

starting from the Gaussian random field w₀ = Re Σ_k σ_k z_k e^{2πi k·x}, σ_k = √2 · 7^{3/2} (4π²|k|² + 49)^{−5/4},
σ_0 = 0. There are two amplitudes. In the script of 2021, which is older than the published file, the real and the
imaginary part of z_k each have variance 1, and w₀ has the standard deviation 0.262. In the current script they have
variance 1/2 each, and w₀ has 0.185.

`make_navier_stokes` writes `law.samples` solutions to a Zarr group, readable by xarray: ``vorticity`` (sample, time, x,
y) and ``initial`` (sample, x, y). Solution i depends only on the seed and i, on every grid and for any number of
workers. `Solutions` in `navier_stokes_reader` reads it.
"""

from __future__ import annotations

import functools
import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from cstformer.errors import CSTError, unknown
from cstformer.system.atomic import atomic_path
from cstformer.system.blocks import block_bar, computed
from cstformer.system.extras import need
from cstformer.system.files import readable
from cstformer.system.memory import keep_freed_memory
from cstformer.system.zarr_files import open_zarr

VISCOSITY = 1e-3
AMPLITUDES = {"2021": 1.0, "current": math.sqrt(0.5)}
"""Standard deviation of the real and of the imaginary part of z_k."""
BLOCK = 10  # solutions that are solved together and stored in one chunk; they fit into the cache of one core
DRAWN = 256  # waves are drawn for the grid of the original script, whatever grid is used
MOST_SOLUTIONS, MOST_TIMES = 10**7, 10**4  # in one file; larger numbers are taken for mistakes
_ATTRIBUTE = "navier_stokes"  # of the Zarr group: marks the file and holds its law


@dataclass(frozen=True)
class Law:
    """Everything that determines the solutions of a file.

    >>> Law(samples=2, until=3, every=0.5).times.tolist()
    [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    """

    samples: int = 5000
    until: float = 50.0
    every: float = 1.0
    """Time between two snapshots; the first is at ``every``."""
    size: int = 64
    """Points along each axis."""
    amplitude: str = "2021"
    seed: int = 0
    step: float = 1 / 16
    """Time step of the solver; 16 steps per time unit leave an error of 10⁻⁶ at t = 20."""

    def __post_init__(self) -> None:
        if self.amplitude not in AMPLITUDES:
            raise unknown("amplitude", self.amplitude, AMPLITUDES)
        for name, lowest, highest in (("samples", 1, MOST_SOLUTIONS), ("size", 8, DRAWN), ("seed", 0, 2**63)):
            number = getattr(self, name)
            if not isinstance(number, int) or not lowest <= number <= highest:
                raise CSTError(f"{name} must be a whole number from {lowest} to {highest}, got {number!r}")
        if not (math.isfinite(self.until) and 0 < self.every <= self.until):
            raise CSTError(f"until and every must be positive, until the larger; got {self.until} and {self.every}")
        if self.until / self.every > MOST_TIMES:
            raise CSTError(f"until={self.until} and every={self.every} are more than {MOST_TIMES} times; take fewer")

    @property
    def times(self) -> Float[np.ndarray, " T"]:
        """Times of the snapshots."""
        return self.every * np.arange(1, math.floor(self.until / self.every + 1e-9) + 1)

    @property
    def blocks(self) -> int:
        """Number of blocks of solutions."""
        return -(-self.samples // BLOCK)


def forcing(size: int) -> Float[np.ndarray, "size size"]:
    """Force f on the grid."""
    x = np.arange(size) / size
    phase = 2 * np.pi * (x[:, None] + x)
    return 0.1 * (np.sin(phase) + np.cos(phase))


def initial_vorticity(index: int, law: Law) -> Float[np.ndarray, "size size"]:
    """w₀ of solution ``index``: the same function on every grid, up to the waves that the grid resolves."""
    z = np.random.default_rng([law.seed, index]).standard_normal((2, DRAWN, DRAWN))
    k = np.fft.fftfreq(DRAWN, 1 / DRAWN)
    k = k[np.abs(k) < law.size / 2]
    rows = k.astype(int)  # index of wave k on a grid of any size; negative waves count from the end
    sigma = math.sqrt(2) * 7**1.5 * (4 * np.pi**2 * (k[:, None] ** 2 + k**2) + 49) ** -1.25
    sigma[0, 0] = 0.0
    waves = np.zeros((law.size, law.size), dtype=complex)
    waves[np.ix_(rows, rows)] = AMPLITUDES[law.amplitude] * sigma * (z[0] + 1j * z[1])[np.ix_(rows, rows)]
    return np.fft.ifft2(waves, norm="forward").real


def solutions(
    indices: ArrayLike, law: Law, dtype: str = "float32"
) -> tuple[Float[np.ndarray, "n size size"], Float[np.ndarray, "n T size size"]]:
    """Solve for the chosen solutions: initial vorticity, and vorticity at the times of the law."""
    import torch

    from cstformer.datasets.vorticity import solve

    initial = np.stack([initial_vorticity(int(i), law) for i in np.atleast_1d(indices)]).astype(dtype)
    force = torch.as_tensor(forcing(law.size))
    later = solve(torch.as_tensor(initial), law.times, viscosity=VISCOSITY, step=law.step, forcing=force)
    return initial, later.numpy()


def make_navier_stokes(
    path: str | os.PathLike[str],
    law: Law,
    *,
    jobs: int | None = None,
    scheduler: str | None = None,
    progress: bool = True,
) -> int:
    """Write the solutions of ``law`` to a Zarr group; resume if an earlier run was stopped.

    Parameters
    ----------
    path : ends in ``.zarr``. With a ``scheduler``, all its workers must see this path.
    jobs : number of processes, of one thread each; the number of cores by default.
    scheduler : address of a Dask cluster to compute on, e.g. ``tcp://10.0.0.1:8786``.
    progress : show a bar on standard error.

    Returns
    -------
    Number of solutions that this call computed.
    """
    from cstformer.system.threads import cores

    target = Path(path).absolute()
    if target.suffix != ".zarr":
        raise CSTError(f"{path}: the solutions are written as Zarr; choose a name that ends in .zarr")
    if jobs is not None and jobs < 1:
        raise CSTError(f"jobs must be at least 1, got {jobs}")
    group = _claim(target, law)
    missing = [int(block) for block in np.flatnonzero(group["finished"][:] == 0)]
    jobs = min(jobs or cores(), len(missing))
    already = law.samples - sum(len(members_of(block, law)) for block in missing)
    made = 0
    with block_bar("solutions", law.samples, already, progress) as advance:
        try:
            for count in computed(functools.partial(_make_block, str(target)), missing, jobs, scheduler):
                made += count
                advance(count)
        except OSError as error:
            raise CSTError(f"cannot write {path}: {error.strerror or error}; the same command goes on later") from error
    return made


def _claim(path: Path, law: Law) -> Any:
    """Create the group with empty arrays; if it exists, open it and check that it has the same law."""
    need("zarr", for_what=f"{path}: writing Zarr")
    import zarr

    if path.exists():
        found = law_of(path)
        if found is None:
            raise CSTError(f"{path} exists and is no Navier–Stokes set; choose another name or remove it")
        if differ := [k for k, v in asdict(law).items() if found.get(k) != v]:
            theirs = ", ".join(f"{k} {found.get(k)}, not {asdict(law)[k]}" for k in differ)
            raise CSTError(f"{path} holds another set ({theirs}); choose another name or remove it")
        for stray in path.rglob("*.partial"):  # left by a writer that was killed
            stray.unlink()
        with readable(path, "Zarr"):
            return open_zarr(path, writable=True)
    axis, block = np.arange(law.size) / law.size, min(BLOCK, law.samples)
    frame = (law.size, law.size)
    with atomic_path(path) as temporary:
        group = zarr.create_group(temporary, zarr_format=3, attributes={_ATTRIBUTE: asdict(law)})

        def array(name: str, dims: tuple[str, ...], shape: tuple[int, ...], dtype: str, **more: Any) -> Any:
            more |= {"dimension_names": dims, "attributes": {"units": "1"}}
            return group.create_array(name, shape=shape, dtype=dtype, **more)

        for name, values in {"sample": np.arange(law.samples), "time": law.times, "x": axis, "y": axis}.items():
            array(name, (name,), values.shape, str(values.dtype))[...] = values
        for name, dims, rest in (
            ("vorticity", ("sample", "time", "x", "y"), (len(law.times), *frame)),
            ("initial", ("sample", "x", "y"), frame),
        ):
            array(name, dims, (law.samples, *rest), "float32", chunks=(block, *rest), fill_value=math.nan)
        array("finished", ("block",), (law.blocks,), "int8", chunks=(1,))
    return open_zarr(path, writable=True)


def law_of(path: Path) -> dict[str, Any] | None:
    """Law in the metadata of a Zarr group that `make_navier_stokes` wrote; None for any other file."""
    meta = path / "zarr.json"
    if not meta.is_file():
        return None
    with readable(path, "Zarr"):
        return json.loads(meta.read_text()).get("attributes", {}).get(_ATTRIBUTE)


def members_of(block: int, law: Law) -> range:
    """Numbers of the solutions of a block."""
    return range(block * BLOCK, min((block + 1) * BLOCK, law.samples))


def _make_block(path: str, block: int) -> int:
    """Compute and write one block; it is marked as finished last."""
    keep_freed_memory()
    group = open_zarr(path, writable=True)
    law = Law(**group.attrs[_ATTRIBUTE])
    members = members_of(block, law)
    rows = slice(members.start, members.stop)
    group["initial"][rows], group["vorticity"][rows] = solutions(list(members), law)
    group["finished"][block] = 1
    return len(members)
