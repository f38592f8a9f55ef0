r"""The start for patches: interpolate whole frames in time, then cut the patch out at any place.

The context is frames on a patch grid. A query at (t, row, col) starts at
:math:`\sum_i w_i(t)\, \text{frame}_i`, where the weights :math:`w_i` are those of any start of `curves` in time
(``smooth``: each band of `waves` has its own; ``modes``: each of the `modes`), resampled at the patch's pixel positions
by cubic convolution (Keys, 1981; C1, exact on the pixel grid).
Beyond the frame the edge pixel continues, or, if the layout is periodic, the opposite edge.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from cstformer.data.batch import Batch
from cstformer.data.frame_grid import FrameGrid, distinct_times
from cstformer.starts.cubic_convolution import keys_weights
from cstformer.starts.curves import Start, make_start
from cstformer.starts.film import Film
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.modes import FrameModes
from cstformer.starts.pixel_view import HALO
from cstformer.starts.time_posterior import TimePosterior
from cstformer.starts.trust import Trust, continued
from cstformer.starts.waves import Waves
from cstformer.taylor import series
from cstformer.taylor.series import Series

Smoother = Waves | Kernel | Trust | FrameModes | None
Corner = tuple[Int[Tensor, "B m"], Int[Tensor, "B m"]]
"""Row and column of the first pixel of each window."""
Windows = Callable[[Series, Corner, tuple[int, int]], Series]
"""From queries (J, B, m, 3), corners and a size to windows of that size, (J, B, m, rows, cols, C)."""

SHARP = 3.0  # how sharply the allowed change falls with the variance of the start; see `bounded_start`
_FILM_PIXELS = 2**22  # pixels × coefficients of a film made at a time: bounds the memory
# Blending a pixel of whole frames is about this many times cheaper than gathering it from a window of all frames.
_BLEND = 16


def frame_start(name: str, batch: Batch, grid: FrameGrid, smoother: Smoother = None) -> Start:
    """Start at patches of any centre, from context patches on the grid.

    Parameters
    ----------
    name : str
        A start of `curves.STARTS`, applied in time; ``modes``: ``smooth`` for each mode; ``wiener``: the frames
        filtered in space, then ``cubic``; ``median``: the view of `Trust` of each pixel of the patch and around it,
        then ``linear``; ``motion``: the same of a `Film`.
    batch : Batch with coordinates (t, row, col), ordered by time and located by ``grid``
    grid : FrameGrid
    smoother : what was fitted to the training frames
        Waves, for ``smooth`` and ``wiener``; Kernel in time of all pixels, for ``smooth``; Trust, for ``median``;
        FrameModes, for ``modes``, or to apply another start to the coefficients of modes.
    """
    times, exists, frames = grid.whole(batch)
    if name == "motion":
        return _film_start(Film(times, exists, frames), grid)
    halo = 0
    if name == "median":
        assert isinstance(smoother, Trust), "the median start needs fitted trust"
        name, frames, halo = "linear", smoother.sight(continued(frames, exists)), HALO
    movie = frame_movie(name, times, exists, frames, smoother)
    return lambda x: _cut_out(x, functools.partial(movie.windows, grid.layout.periodic), grid, halo)


def bounded_start(name: str, batch: Batch, grid: FrameGrid, smoother: Waves | FrameModes) -> Start:
    """The start ``smooth`` or ``modes`` of a patch, and after its c numbers the share of a change that is allowed.

    A network learns to change the start at hidden frames. Between frames that are given the gaps are narrower than
    those which hidden frames leave, the start knows more, and nothing says that the change is right there. With the
    posterior variance v of the start at the time of the query and its low value v₀ at hidden training frames
    (`narrow` of the smoother), the share is

    .. math:: v^s / (v^s + (v_0 / 2)^s)

    with s = `SHARP`, which is nearly 1 at hidden frames and nearly 0 where the start knows well.
    """
    movie = frame_movie(name, *grid.whole(batch), smoother)
    assert isinstance(movie, _ProcessMovie), "only a process knows its variance"

    def start(x: Series) -> Series:
        patches = _cut_out(x, functools.partial(movie.windows, grid.layout.periodic), grid, 0)
        ratio = movie.variance(x.map(lambda c: c[..., :1])).map(lambda c: 2 * c / smoother.narrow)
        power = series.power(ratio, SHARP)
        share = series.divide(power, series.shift(power, 1.0)).map(lambda c: c.to(x.coefs.dtype))
        return series.concatenate([patches, share], -1)

    return start


def frame_movie(name: str, times: Tensor, exists: Tensor, frames: Tensor, smoother: Smoother = None) -> FrameMovie:
    """Whole frames (B, T, H, W, C) and their interpolation in time; see `frame_start`."""
    if isinstance(smoother, FrameModes):
        return _ModeMovie("smooth" if name == "modes" else name, times, exists, frames, smoother)
    assert name != "modes", "the modes start needs fitted modes"
    if name == "wiener":
        assert isinstance(smoother, Waves), "the wiener start needs fitted waves"
        name, frames = "cubic", smoother.wiener(frames)
    if name == "smooth" and isinstance(smoother, Waves):
        return _WaveMovie(times, exists, frames, smoother)
    return FrameMovie(name, times, exists, frames, smoother if isinstance(smoother, Kernel) else None)


class FrameMovie:
    """Frames, and their interpolation in time.

    Parameters
    ----------
    name : start in time
    times, exists : (B, T)
    frames : (B, T, H, W, C)
    kernel : for the start ``smooth``
    """

    def __init__(self, name: str, times: Tensor, exists: Tensor, frames: Tensor, kernel: Kernel | None = None):
        self.name, self.times, self.exists, self.frames, self.kernel = name, times, exists, frames, kernel

    @functools.cached_property
    def weights(self) -> Start:
        """Weights (J, B, m, T) of the frames at times (J, B, m, 1): the start of the identity matrix."""
        return self._in_time(self.kernel)

    @property
    def stack(self) -> Tensor:
        """The frames (B, T, H, W, C) that `weights` belong to."""
        return self.frames

    def at_moments(self, t: Tensor) -> Tensor:
        """Whole frames (B, u, H, W, C) at the moments (B, u)."""
        return torch.einsum("but,bthwc->buhwc", self.weights(series.constant(t[..., None])).value, self.stack)

    def windows(self, periodic: bool, x: Series, corner: Corner, size: tuple[int, int]) -> Series:
        """Windows (J, B, m, rows, cols, C) at the queries."""
        height, width = self.frames.shape[2:4]
        moments, which = distinct_times(x.value[..., 0])
        if x.order == 0 and moments.shape[1] * height * width <= _BLEND * which.shape[1] * size[0] * size[1]:
            return series.constant(_windows(self.at_moments(moments), *corner, size, periodic, which)[:, 0])
        # Gather windows of all frames: fewer pixels than whole frames at all moments.
        weights = self.weights(x.map(lambda c: c[..., :1]))
        window = _windows(self.stack, *corner, size, periodic)
        return weights.map(lambda w: torch.einsum("jbmt,btmpqc->jbmpqc", w, window))

    def _in_time(self, kernel: Kernel | None) -> Start:
        batch, count = self.times.shape
        identity = torch.eye(count, dtype=self.times.dtype, device=self.times.device).expand(batch, -1, -1)
        mask = self.exists[..., None].expand(-1, -1, count)
        return make_start(self.name, self.times[..., None], identity, mask, kernel)


class _ProcessMovie(FrameMovie):
    """Frames that are sums of pictures, each times a Gaussian process in time."""

    processes: Sequence[Kernel]
    """Kernels of the processes."""
    shares: Tensor
    """Variance of a pixel, its mean over the frame, for each unit of variance of each process."""

    @functools.cached_property
    def posterior(self) -> TimePosterior:
        """The processes given the frames."""
        return TimePosterior(self.processes, self.times, self.exists)

    def variance(self, t: Series) -> Series:
        """Posterior variance at times, its mean over the pixels: (J, B, m, 1), in float64."""
        return self.posterior.mixed_variance(t, self.shares)


class _WaveMovie(_ProcessMovie):
    """Frames whose bands of waves are smoothed in time, each with its own kernel."""

    def __init__(self, times: Tensor, exists: Tensor, frames: Tensor, waves: Waves):
        super().__init__("smooth", times, exists, frames)
        self.waves, self.processes, self.shares = waves, waves.loud, waves.shares(*frames.shape[2:4])

    @functools.cached_property
    def weights(self) -> Start:
        """Weights (J, B, m, bands · T) of the frames of each band."""
        parts = [self._in_time(kernel) for kernel in self.waves.loud]
        return lambda t: series.concatenate([part(t) for part in parts], -1)

    @functools.cached_property
    def stack(self) -> Tensor:
        """The part of the frames in each band, (B, bands · T, H, W, C)."""
        return torch.cat(self.waves.bands(self.frames), 1)

    def at_moments(self, t: Tensor) -> Tensor:
        """Blend the amplitudes of the waves, then sum the waves."""
        each = zip(self.posterior.weights(t), self._parts, strict=True)
        blended = [(w @ x.flatten(2)).unflatten(2, x.shape[2:]) for w, x in each]
        return self.waves.join(blended, *self.frames.shape[2:4])  # from (B, u, K, C) of each band

    @functools.cached_property
    def _parts(self) -> list[Tensor]:
        return self.waves.split(self.frames)


class _ModeMovie(_ProcessMovie):
    """Modes whose coefficients are interpolated in time, and the mean frame."""

    def __init__(self, name: str, times: Tensor, exists: Tensor, frames: Tensor, modes: FrameModes):
        super().__init__(name, times, exists, frames)
        self.modes, self.processes, self.shares = modes, modes.kernel.channels, modes.shares

    @functools.cached_property
    def weights(self) -> Start:
        """Coefficients (J, B, m, K) of the modes, and 1 for the mean frame: (J, B, m, K + 1)."""
        scale, known = self.modes.scale.to(self.frames), self.modes.coefficients(self.frames)
        observed = self.exists[..., None].expand_as(known)
        kernel = self.modes.kernel if self.name == "smooth" else None
        inner = make_start(self.name, self.times[..., None], known, observed, kernel)

        def weights(t: Series) -> Series:
            one = series.constant(torch.ones_like(t.value)).lift(t)
            return series.concatenate([inner(t).map(lambda c: c * scale), one], -1)

        return weights

    @functools.cached_property
    def stack(self) -> Tensor:
        """The modes and the mean frame, the same for all samples: (B, K + 1, H, W, C)."""
        pictures = torch.cat([self.modes.vectors, self.modes.mean[None]]).to(self.frames)
        return pictures.expand(len(self.frames), *pictures.shape)


def _film_start(film: Film, grid: FrameGrid) -> Start:
    """Start at patches of a film. It is made of whole frames, few moments at a time."""
    height, width = grid.layout.frame

    def windows(x: Series, corner: Corner, size: tuple[int, int]) -> Series:
        moments, which = distinct_times(x.value[..., 0])
        frames = film(moments, x.order).coefs  # (1 + order, B, u, H, W, ·), the derivatives of compose
        parts = [_windows(part, *corner, size, grid.layout.periodic, which)[:, 0] for part in frames]
        return series.compose(x.map(lambda c: c[..., 0, None, None, None]), parts)

    def start(x: Series) -> Series:
        m = x.coefs.shape[2]
        pixels = distinct_times(x.value[..., 0])[0].numel() * height * width
        if m == 1 or pixels * (1 + x.order) <= _FILM_PIXELS:
            return _cut_out(x, windows, grid, HALO)
        halves = [x.map(lambda c: c[:, :, : m // 2]), x.map(lambda c: c[:, :, m // 2 :])]
        return series.concatenate([start(half) for half in halves], 1)

    return start


def _cut_out(x: Series, windows: Windows, grid: FrameGrid, halo: int) -> Series:
    """Patches at the places of the queries, with ``halo`` pixels around them, flattened: (J, B, m, ·)."""
    rows, cols = (_position(x, axis, grid) for axis in (0, 1))
    whole = _on_grid(rows[1]) and _on_grid(cols[1])
    p, q = (side + 2 * halo for side in grid.layout.patch)
    # Off the pixel grid cubic convolution reads one pixel before and two after each position.
    first, size = (halo, (p, q)) if whole else (halo + 1, (p + 3, q + 3))
    y = windows(x, (rows[0] - first, cols[0] - first), size)
    if not whole:
        y = _resample(y, rows[1], p, axis=3)
        y = _resample(y, cols[1], q, axis=4)
    return y.map(lambda c: c.flatten(3))


def _position(x: Series, axis: int, grid: FrameGrid) -> tuple[Tensor, Series]:
    """First pixel of each patch along an axis (0: rows), (B, m) integers, and the fraction beyond it as a series."""
    size = grid.layout.patch[axis]
    where = x.map(lambda c: c[..., 1 + axis] * grid.extent[axis])
    value = where.value + grid.origin[axis] - grid.layout.half[axis]
    held = value if grid.layout.periodic else value.clamp(0, grid.layout.padded[axis] - size)
    first = torch.floor(held + 1e-4)
    tail = where.coefs[1:] * ((held - value).abs() < 1e-4)  # a patch held at the edge does not move
    return first.long(), Series(torch.cat([(held - first).unsqueeze(0), tail]), x.order, x.directions)


def _on_grid(fraction: Series) -> bool:
    return bool(fraction.value.abs().max() < 1e-3) and not bool(fraction.coefs[1:].any())


def _windows(
    frames: Tensor, row: Tensor, col: Tensor, size: tuple[int, int], periodic: bool, which: Tensor | None = None
) -> Tensor:
    """Cut-outs of ``size`` pixels whose first pixel is (row, col): (B, T, m, size[0], size[1], C).

    Of all frames, or, if ``which`` (B, m) says so, of one frame each; T is then 1.
    """
    _, count, height, width, channels = frames.shape
    r = row[..., None] + torch.arange(size[0], device=row.device)  # (B, m, p)
    c = col[..., None] + torch.arange(size[1], device=col.device)
    r, c = (r % height, c % width) if periodic else (r.clamp(0, height - 1), c.clamp(0, width - 1))
    index = r[..., :, None] * width + c[..., None, :]  # (B, m, p, q)
    if which is not None:
        index = index + (height * width * which)[..., None, None]
        frames, count = frames.flatten(1, 2)[:, None], 1
    index = index.flatten(1)
    index = index[:, None, :, None].expand(-1, count, -1, channels)
    return frames.flatten(2, 3).gather(2, index).unflatten(2, (row.shape[1], *size))


def _resample(y: Series, fraction: Series, size: int, axis: int) -> Series:
    """Cubic convolution along one pixel axis of (J, B, m, p, q, C)."""
    total: Series | None = None
    for tap, weight in enumerate(keys_weights(fraction)):
        taps = Series(y.coefs.narrow(axis, tap, size), y.order, y.directions)
        term = weight.map(lambda w: w[..., None, None, None]) * taps
        total = term if total is None else total + term
    assert total is not None
    return total
