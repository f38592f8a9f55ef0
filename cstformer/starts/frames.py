"""Movies: the tokens are patches of frames on a grid."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.nn import functional as F

from cstformer.data.batch import Batch
from cstformer.data.frame_grid import FrameGrid, distinct_times, fill_pixels
from cstformer.data.layout import PatchLayout
from cstformer.data.samples import Samples
from cstformer.data.units import Scaling
from cstformer.errors import CSTError
from cstformer.starts.choosing import choose_modes
from cstformer.starts.curves import Start
from cstformer.starts.frame_spread import frame_variances
from cstformer.starts.frame_start import Smoother, bounded_start, frame_start
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.kernel_fit import fit_kernel
from cstformer.starts.kind import MAX_NOISE, Corruption, DataKind, in_user_units, kernel_from
from cstformer.starts.modes import FrameModes, fit_modes
from cstformer.starts.pixel_view import PixelView
from cstformer.starts.trust import Trust, fit_trust
from cstformer.starts.waves import Waves, fit_waves, wave_numbers
from cstformer.taylor import series
from cstformer.taylor.derivatives import MultiIndex

SPREAD_PIXELS = 2**22  # pixels of the variances that are computed at once: bounds the memory
TRUST_SAMPLES = 32  # samples that the trust of the median start is fitted to

WIDEST = 0.95  # largest share of the frames hidden when a network with the start ``motion`` is judged: all but the ends
LEAST_GAIN = 0.02  # by how much such a network must improve on its start


class Frames(DataKind):
    """Patches at (t, row, col) of frames of one layout; see `DataKind`.

    Attributes
    ----------
    waves : Waves, set by `fit_prior`
        Spectrum and kernels in time of the frames, for the start ``smooth``.
    modes : FrameModes or None, set by `fit_prior`
        Modes in space and their kernels in time, for the start ``modes``.
    trust : Trust or None, set by `fit_prior`
        Which pixels to believe, for the start ``median``.
    """

    # Less noise than the data have, because the smooth start is fitted to that; chosen on Navier–Stokes flows.
    noise_share: ClassVar[float] = 0.7
    optimiser: ClassVar[str] = "muon"
    near: ClassVar[bool] = True
    hidden_first: ClassVar[int] = 4
    ends_stay: ClassVar[bool] = True
    bounded_axes: ClassVar[int | None] = 1  # in space, patches reach beyond the centres of the outermost ones
    shifts: ClassVar[bool] = True
    layout: PatchLayout

    def __init__(self, scaling: Scaling, layout: PatchLayout):
        super().__init__(scaling, layout)
        self.grid = FrameGrid.of(layout, scaling)
        self.waves: Waves | None = None
        self.modes: FrameModes | None = None
        self.trust: Trust | None = None

    @property
    def preset(self) -> str:
        """Fields and movies."""
        return "frames"

    @classmethod
    def of(cls, samples: Samples, scaling: str = "linear") -> Self:
        """Measure each image channel over all pixels of all patches."""
        if scaling == "robust":
            raise CSTError("scaling='robust' is for points; the pixels of frames are scaled linearly, use 'auto'")
        layout = samples.layout
        assert layout is not None, "frames have a layout"
        return cls(Scaling.of(samples, pooled=layout.channels), layout)

    def batch(self, samples: Samples, dtype: torch.dtype, device: torch.device) -> Batch:
        """Number frames and patches here, once, from coordinates in double precision."""
        return self.grid.locate(super().batch(samples, torch.float64, torch.device("cpu"))).to(dtype, device)

    def outside(self, queries: Float[np.ndarray, "N m 3"]) -> Float[np.ndarray, "N m a"]:
        """A periodic frame has no outside in space."""
        scaled = self.scaling.coords(queries)
        return scaled[..., :1] if self.layout.periodic else scaled

    def spacing(self, batch: Batch) -> Float[Tensor, " 3"]:
        """Distance between frames, and between patches."""
        assert batch.frame is not None
        frames = 1 + float(batch.frame.amax(1).double().mean())
        return 1 / (batch.coords.new_tensor([frames, *self.layout.grid]) - 1).clamp_min(1)

    @property
    def periods(self) -> dict[int, float]:
        """Height and width of periodic frames."""
        if not self.layout.periodic:
            return {}
        return {1 + axis: self.layout.frame[axis] / self.grid.extent[axis] for axis in (0, 1)}

    def state_shape(self, c: int) -> tuple[int, ...]:
        """Height, width and channels of a frame."""
        return (*self.layout.frame, self.layout.channels)

    def sequence(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Whole frames, without what a patch has beyond them."""
        times, exists, values, observed = self.grid.read(batch)
        height, width = self.layout.frame
        return times, values[:, :, :height, :width], observed[:, :, :height, :width], exists

    def read_states(self, states: Tensor, which: Tensor, queries: Tensor) -> Tensor:
        """Cut patches out of frames."""
        corner = torch.stack([self.grid.first_pixel(queries[:, 1 + axis], axis) for axis in (0, 1)], -1)
        return cut_patches(states, which, corner, self.layout.patch, self.layout.periodic)

    def check_start(self, start: str, pattern: str, corrupted: bool) -> None:
        """The starts that view pixels need the pattern ``context``; ``median`` needs a corruption to learn from."""
        if (pattern == "joint" and start != "modes") or (start == "median" and not corrupted):
            super().check_start(start, pattern, corrupted)

    def check_coord_noise(self, coord_noise: float) -> None:
        """Patches cannot leave their grid."""
        if coord_noise > 0:
            raise CSTError("coord_noise cannot be used with frames, whose patches lie on a grid; set it to 0")

    def fit_kernel(self, batch: Batch, seed: int) -> Kernel:
        """Fit in time, to pixels; what neighbours in space do not explain bounds the noise."""
        coords, values, mask = pixel_series(batch, self.grid)
        return fit_kernel(coords, values, mask, seed, min(MAX_NOISE, self.noise(batch)))

    def fit_waves(self, batch: Batch) -> Waves:
        """Fit the waves of all frames."""
        times, exists, frames = self.grid.whole(batch)
        return fit_waves(times, frames, exists, self.layout.periodic)

    def noise(self, batch: Batch) -> float:
        """Standard deviation of the noise of single pixels: an upper bound, see `pixel_noise`."""
        return pixel_noise(batch, self.grid)

    def fit_prior(self, batch: Batch, start: str, seed: int, corruption: Corruption | None = None) -> str:
        """Fit kernel and waves, for the start ``modes`` the modes, and for ``median`` the trust in pixels.

        ``auto`` is ``modes`` where they predict hidden frames better than the waves of ``smooth`` do.
        """
        chosen = super().fit_prior(batch, start, seed)
        self.waves = self.fit_waves(batch)
        if start == "modes":
            self.modes = self.fit_modes(batch, seed)
        if start == "auto" and corruption is None:
            self.modes = choose_modes(batch, self.grid, self.waves, seed)
            chosen = "smooth" if self.modes is None else "modes"
        if start == "median":
            assert corruption is not None
            some = batch[torch.arange(min(TRUST_SAMPLES, len(batch)))]
            given = self.corrupt(some, corruption, torch.Generator().manual_seed(seed))
            self.trust = fit_trust(self.grid.whole(some)[2], self.grid.whole(some.replace(values=given))[2])
        return chosen

    def fit_modes(self, batch: Batch, seed: int, rank: int | None = None, turned: bool = True) -> FrameModes:
        """Fit the modes of all frames; ``rank`` and ``turned`` as in `modes.fit_modes`."""
        times, exists, frames = self.grid.whole(batch)
        return fit_modes(times, frames, exists, seed, rank, turned=turned)

    def check_prior(self, start: str) -> None:
        """Training needs the waves as well, the start ``modes`` the modes, and ``median`` the trust."""
        super().check_prior(start)
        needed = {"median": "trust", "modes": "modes"}
        for name in ("waves", *([needed[start]] if start in needed else [])):
            if getattr(self, name) is None:
                raise ValueError(f"{name} is missing")

    def start(self, name: str, batch: Batch, smoother: Smoother = None) -> Start:
        """Interpolate frames in time and cut the patch out."""
        if smoother is None:
            smoother = {"median": self.trust, "modes": self.modes}.get(name, self.waves)
        return frame_start(name, batch, self.grid, smoother)

    def initial(self, name: str, batch: Batch, bounded: bool) -> Start:
        """The start, and for a bounded network the share of a change that is allowed."""
        smoother = self._bounding(name)
        if not bounded or smoother is None:
            return self.start(name, batch)
        return bounded_start(name, batch, self.grid, smoother)

    def _bounding(self, name: str) -> Waves | FrameModes | None:
        """The smoother of a start that bounds the network."""
        smoother = {"smooth": self.waves, "modes": self.modes}.get(name)
        return smoother if smoother is not None and smoother.narrow > 0 else None

    def posterior_mean(self, batch: Batch) -> Callable[[Tensor], Tensor]:
        """One process in time for all pixels, held beyond the first and the last frame."""
        start = self.start("smooth", batch, self.kernel)
        return lambda x: start(series.constant(x)).value

    def spread(self, start: str, batch: Batch) -> Callable[[Tensor, MultiIndex], Tensor]:
        """Posterior variance of the modes for the start ``modes``, of the waves for every other."""
        times, exists, _ = self.grid.whole(batch)
        smoother = self.modes if start == "modes" else self.waves
        assert smoother is not None, "fit the prior first"
        variances = frame_variances(smoother, times, exists, self.layout)

        def spread(x: Float[Tensor, "B m 3"], index: MultiIndex) -> Float[Tensor, "B m c"]:
            moments, which = distinct_times(x[..., 0])
            if moments.numel() * math.prod(self.layout.frame) > SPREAD_PIXELS and x.shape[1] > 1:
                half = x.shape[1] // 2
                return torch.cat([spread(x[:, :half], index), spread(x[:, half:], index)], 1)
            pictures = variances(moments, index)  # (B, u, H, W, C)
            number = which + torch.arange(len(x), device=x.device)[:, None] * moments.shape[1]
            cut = self.read_states(pictures.flatten(0, 1), number.flatten(), x.flatten(0, 1))
            return cut.unflatten(0, x.shape[:2])

        return spread

    def judging(self, start: str, hide: float) -> tuple[float, float]:
        """Judge a change of moved frames by faster motion too: up to all frames but the ends of a movie are hidden.

        Training and validation come from the same recordings, of which each has its own motion. A change that only
        suits this motion makes the frames of others worse than the start does, and must not be kept.
        """
        return (WIDEST, LEAST_GAIN) if start == "motion" else super().judging(start, hide)

    def network_options(self, start: str, pattern: str) -> dict[str, Any]:
        """Which numbers tokens carry.

        The starts ``smooth`` and ``modes`` do not pass through the data: context tokens then carry them and, apart from
        them, what they leave of their values. Other starts pass through the data, and nothing would be left.
        """
        viewed = start in ("median", "motion")
        view = PixelView(*self.layout.patch, self.layout.channels) if viewed else None
        own = pattern == "context"
        return {
            "split_context": own and start in ("smooth", "modes", "auto"),
            "bounded": own and self._bounding(start) is not None,
            "view": view,
        }

    def corrupt(self, batch: Batch, corruption: Corruption, generator: Generator) -> Tensor:
        """Corrupt whole frames (B, T, H, W, C)."""
        return self.grid.change(batch, in_user_units(self.scaling, corruption, generator))

    def shift(self, batch: Batch, target: Tensor, generator: Generator) -> tuple[Batch, Tensor]:
        """Patches of the same frames, a random number of pixels off the grid; along an axis of one patch none."""
        tiling = zip(self.layout.grid, self.layout.patch, strict=True)
        sizes = [size if count > 1 or self.layout.periodic else 1 for count, size in tiling]
        row, col = (int(torch.randint(size, (), generator=generator)) for size in sizes)
        return self.grid.shift(batch, target, (row, col))

    def clean(self, batch: Batch, target: Tensor) -> Tensor:
        """Drop the bands of waves that are noise alone; only where all pixels of all frames were observed."""
        assert self.waves is not None, "fit the prior first"
        if not self.grid.complete(batch):  # a missing patch would count as zeros and smear into its neighbours
            return target
        frames = self.grid.frames(batch, target)
        return self.grid.tokens(batch, self.waves.join(self.waves.split(frames), *self.layout.frame))

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        fitted = {"kernel": self.kernel, "waves": self.waves, "trust": self.trust}
        return {
            "scaling": self.scaling.describe(),
            "layout": self.layout.to_dict(),
            **{name: None if x is None else dataclasses.asdict(x) for name, x in fitted.items()},
            "modes": None if self.modes is None else self.modes.describe(),
        }

    def tensors(self) -> dict[str, Tensor]:
        """The modes, which are too large for JSON."""
        return {} if self.modes is None else self.modes.tensors()

    def restore_tensors(self, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """Modes and their kernels."""
        if about.get("modes") is not None:
            self.modes = FrameModes.from_tensors(tensors, about["modes"])
            if self.modes.mean.shape != (*self.layout.frame, self.layout.channels):
                raise ValueError("modes are not those of the layout")

    @classmethod
    def from_description(cls, about: dict[str, Any]) -> Self:
        """From JSON."""
        kind = cls(Scaling.from_description(about["scaling"]), PatchLayout.from_dict(about["layout"]))
        kind.kernel = kernel_from(about.get("kernel"), 1, kind.layout.channels)
        kind.noises = () if kind.kernel is None else kind.kernel.noises
        waves, trust = about.get("waves"), about.get("trust")
        kind.waves = None if waves is None else Waves.from_description(waves)
        if kind.waves and len(kind.waves.gains) <= wave_numbers(*kind.layout.frame, kind.waves.periodic).max():
            raise ValueError(f"the waves have {len(kind.waves.gains)} gains, too few for the frames of the layout")
        kind.trust = None if trust is None else Trust.from_description(trust)
        return kind


def pixel_series(batch: Batch, grid: FrameGrid) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels as series in time: times (N, T, 1), values (N, T, pixels), existing frames (N, T).

    Only pixels that were observed in every frame of every sample; where there are none, all, with gaps filled.
    """
    times, exists, frames, seen = grid.read(batch)
    always = (seen.all(-1) | ~exists[..., None, None]).all(0).all(0)  # (H, W)
    if not bool(always.any()):
        frames, always = fill_pixels(frames, seen, exists), torch.ones_like(always)
    return times[..., None], frames[:, :, always].flatten(2), exists


def pixel_noise(batch: Batch, grid: FrameGrid) -> float:
    """Noise of single pixels, from what neighbours in space do not explain (Immerkær, 1996).

    Time alone cannot tell noise from fast dynamics. The mask 1 −2 1 / −2 4 −2 / 1 −2 1 is blind to smooth images and
    answers to white noise of standard deviation σ with 6σ (the root of the sum of its squares is 6). The median keeps
    edges out; |N(0, σ²)| has the median 0.6745 σ. Texture counts as noise: an upper bound.
    """
    _, _, frames, seen = grid.read(batch)
    images, known = (x.movedim(-1, 2).flatten(0, 2)[:, None] for x in (frames, seen))  # (images, 1, H, W)
    if min(images.shape[-2:]) < 3:
        return math.inf
    second = images.new_tensor([1.0, -2.0, 1.0])
    answer = F.conv2d(images, (second[:, None] * second)[None, None])
    whole = F.max_pool2d((~known).to(images), 3, 1) == 0  # all nine pixels were observed
    return float(answer[whole].abs().median() / (6 * 0.6745)) if bool(whole.any()) else math.inf


def cut_patches(
    pictures: Float[Tensor, "K H W C"], which: Tensor, corner: Tensor, patch: tuple[int, int], periodic: bool = False
) -> Float[Tensor, "Q c"]:
    """Patches whose first pixel is at ``corner`` (Q, 2) of picture ``which`` (Q,): bilinear off the pixel grid.

    Beyond the picture its edge continues, or, if it is ``periodic``, the opposite edge.

    >>> picture = torch.arange(6.0).reshape(1, 2, 3, 1)
    >>> cut_patches(picture, torch.tensor([0]), torch.tensor([[0.5, 1.0]]), (1, 2)).tolist()
    [[2.5, 3.5]]
    """
    height, width = pictures.shape[1:3]
    start = torch.floor(corner + 1e-3)
    fraction = (corner - start).clamp_min(0)
    fraction = torch.where(fraction < 1e-3, torch.zeros_like(fraction), fraction)

    def at(row_step: int, column_step: int) -> Tensor:
        r, c = (
            start[:, i, None].long() + step + torch.arange(patch[i], device=start.device)
            for i, step in ((0, row_step), (1, column_step))
        )
        r, c = (r % height, c % width) if periodic else (r.clamp(0, height - 1), c.clamp(0, width - 1))
        return pictures[which[:, None, None], r[:, :, None], c[:, None, :]]  # (Q, P0, P1, C)

    if not bool(fraction.any()):
        return at(0, 0).flatten(1)
    f, g = (fraction[:, i, None, None, None] for i in (0, 1))
    upper = (1 - g) * at(0, 0) + g * at(0, 1)
    lower = (1 - g) * at(1, 0) + g * at(1, 1)
    return ((1 - f) * upper + f * lower).flatten(1)
