r"""The start for patch tokens: interpolate whole frames in time, then cut the patch at any place.

The context is frames on a patch grid. A query at (t, row, col) starts at
:math:`\sum_i w_i(t)\, \text{frame}_i`, where the weights :math:`w_i` are those of any start of `interpolation` in time
(``smooth``: each band of `waves` has its own), resampled at the patch's pixel positions by cubic convolution (Keys,
1981; C1, exact on the pixel grid).
Beyond the frame the edge pixel continues, or, if the layout is periodic, the opposite edge.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cstformer.data.batch import Batch, Context
from cstformer.data.patches import PatchLayout
from cstformer.starts.cubic_convolution import keys_weights
from cstformer.starts.curves import Start, make_start
from cstformer.starts.film import Film
from cstformer.starts.gaussian_process import Kernel, smoothing_weights
from cstformer.starts.trust import Trust, continued
from cstformer.starts.waves import Waves, fit_waves
from cstformer.taylor import series
from cstformer.taylor.series import Series

Pixels = tuple[np.ndarray, np.ndarray]
"""Origin and extent of the row and column axes in pixels: pixel = origin + extent · coordinate."""
Smoother = Waves | Kernel | Trust | None
Windows = Callable[[Series, tuple[Tensor, Tensor], tuple[int, int]], Series]
"""From queries, first pixels (B, m) and a size to windows of that size, (J, B, m, rows, cols, C)."""
HALO = 2  # pixels around a patch that the starts ``median`` and ``motion`` show as well

_FILM = 2**22  # pixels of a film at a time
_BLEND = 16  # how many times cheaper it is to blend a pixel of whole frames than to cut it out of all of them


def frame_start(kind: str, points: Context, layout: PatchLayout, pixels: Pixels, smoother: Smoother = None) -> Start:
    """Start at patches of any centre, from context patches on the grid.

    Parameters
    ----------
    kind : start in time, one of `interpolation.STARTS`, or ``wiener``: the frames filtered, then ``cubic``, or
        ``median``: what `Trust.sight` says of the pixels of a patch and `HALO` around it, then ``linear``, or
        ``motion``: the same of a `Film`
    points : Context with coordinates (t, row, col), ordered by time
    layout : PatchLayout
    pixels : origin and extent of the row and column axes in pixels
    smoother : Waves of the training frames, for ``smooth`` and ``wiener``; or Kernel in time of all pixels, for
        ``smooth``; or Trust, for ``median``
    """
    times, exists, frames = whole_frames(points, layout, pixels)
    if kind == "motion":
        return _film_start(Film(times, exists, frames), layout, pixels)
    halo = 0
    if kind == "median":
        assert isinstance(smoother, Trust), "the median start needs fitted trust"
        kind, frames, halo = "linear", smoother.sight(continued(frames, exists)), HALO
    batch, count, height, width = frames.shape[:4]
    waves = smoother if kind == "smooth" and isinstance(smoother, Waves) else None
    if kind == "wiener":
        assert isinstance(smoother, Waves), "the wiener start needs fitted waves"
        kind, frames = "cubic", smoother.wiener(frames)
    single = smoother if isinstance(smoother, Kernel) else None

    @functools.cache
    def in_time() -> list[Start]:
        """Weights (J, B, m, T) of the frames, or of the frames of each band."""
        identity = torch.eye(count, dtype=times.dtype, device=times.device).expand(batch, -1, -1)
        mask = exists[..., None].expand(-1, -1, count)
        kernels = [single] if waves is None else waves.loud
        return [make_start(kind, times[..., None], identity, mask, kernel) for kernel in kernels]

    @functools.cache
    def bands() -> Tensor:
        return frames if waves is None else torch.cat(waves.bands(frames), 1)  # (B, T·bands, H, W, C)

    @functools.cache
    def amplitudes() -> tuple[list[Tensor], Callable[[Tensor], Tensor]]:
        assert waves is not None
        return waves.split(frames), smoothing_weights(waves.loud, times, exists)

    def at_moments(t: Tensor) -> Tensor:
        """Whole frames (B, u, H, W, C) at the moments (B, u)."""
        if waves is None:
            return torch.einsum("but,bthwc->buhwc", in_time()[0](series.constant(t[..., None])).value, frames)
        parts, weights = amplitudes()
        return waves.join([_blend(w, x) for w, x in zip(weights(t), parts, strict=True)], height, width)

    def of_all_frames(x: Series, corner: tuple[Tensor, Tensor], size: tuple[int, int]) -> Series:
        """Windows (J, B, m, P0, P1, C), each a sum over those of all frames."""
        t = x.map(lambda c: c[..., :1])
        weights = series.concatenate([part(t) for part in in_time()], -1)  # (J, B, m, T·bands)
        window = _windows(bands(), *corner, size, layout.periodic)
        return weights.map(lambda w: torch.einsum("jbmt,btmpqc->jbmpqc", w, window))

    def windows(x: Series, corner: tuple[Tensor, Tensor], size: tuple[int, int]) -> Series:
        moments, which = _distinct(x.value[..., 0])
        if x.order == 0 and moments.shape[1] * height * width <= _BLEND * which.shape[1] * size[0] * size[1]:
            return series.constant(_windows(at_moments(moments), *corner, size, layout.periodic, which)[:, 0])
        return of_all_frames(x, corner, size)  # windows of all frames are fewer pixels than frames of all moments

    return lambda x: _cut_out(x, windows, layout, pixels, halo)


def _film_start(film: Film, layout: PatchLayout, pixels: Pixels) -> Start:
    """Start at patches of a film, which is made of whole frames: few moments at a time."""
    height, width = layout.frame

    def windows(x: Series, corner: tuple[Tensor, Tensor], size: tuple[int, int]) -> Series:
        moments, which = _distinct(x.value[..., 0])
        frames = film(moments, x.order).coefs  # (1 + order, B, u, H, W, ·), the derivatives of compose
        parts = [_windows(part, *corner, size, layout.periodic, which)[:, 0] for part in frames]
        return series.compose(x.map(lambda c: c[..., 0, None, None, None]), parts)

    def start(x: Series) -> Series:
        m = x.coefs.shape[2]
        if m == 1 or _distinct(x.value[..., 0])[0].numel() * height * width * (1 + x.order) <= _FILM:
            return _cut_out(x, windows, layout, pixels, HALO)
        halves = [x.map(lambda c: c[:, :, : m // 2]), x.map(lambda c: c[:, :, m // 2 :])]
        return series.concatenate([start(half) for half in halves], 1)

    return start


def _cut_out(x: Series, windows: Windows, layout: PatchLayout, pixels: Pixels, halo: int) -> Series:
    """Patches at the places of the queries, with so many pixels around, from windows of whole pixels."""
    rows, cols = (_position(x, axis, layout, pixels) for axis in (1, 2))
    whole = _on_grid(rows[1]) and _on_grid(cols[1])
    p, q = (side + 2 * halo for side in layout.patch)
    first, size = (halo, (p, q)) if whole else (halo + 1, (p + 3, q + 3))
    y = windows(x, (rows[0] - first, cols[0] - first), size)
    if not whole:
        y = _resample(y, rows[1], p, axis=3)
        y = _resample(y, cols[1], q, axis=4)
    return y.map(lambda c: c.flatten(3))


def _blend(weights: Tensor, x: Tensor) -> Tensor:
    """Sums (B, u, K, C) of the amplitudes (B, T, K, C)."""
    return (weights @ x.flatten(2)).unflatten(2, x.shape[2:])


def whole_frames(points: Context, layout: PatchLayout, pixels: Pixels) -> tuple[Tensor, Tensor, Tensor]:
    """Frames as `read_frames` has them, with missing pixels filled and nothing beyond the frame."""
    times, exists, frames, seen = read_frames(points, layout, pixels)
    # What a patch has beyond the frame was never seen: cut it off, so that the edge pixel continues there.
    return times, exists, _fill(frames, seen, exists)[:, :, : layout.frame[0], : layout.frame[1]]


def frame_waves(data: Batch, layout: PatchLayout, pixels: Pixels) -> Waves:
    """Fit the waves of all frames."""
    times, exists, frames = whole_frames(data.points, layout, pixels)
    return fit_waves(times, frames, exists, layout.periodic)


def frame_series(data: Batch, layout: PatchLayout, pixels: Pixels) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels as series for fitting the kernel: times (N, T, 1), values (N, T, pixels), existing frames (N, T)."""
    times, exists, frames, seen = read_frames(data.points, layout, pixels)
    always = (seen.all(-1) | ~exists[..., None, None]).all(0).all(0)  # (H, W)
    if not bool(always.any()):
        frames, always = _fill(frames, seen, exists), torch.ones_like(always)
    return times[..., None], frames[:, :, always].flatten(2), exists


def frame_noise(data: Batch, layout: PatchLayout, pixels: Pixels) -> float:
    """Noise of single pixels, from what neighbours in space do not explain (Immerkær, 1996).

    Time alone cannot tell noise from fast dynamics; the mask 1 −2 1 / −2 4 −2 / 1 −2 1 is blind to smooth images and
    answers to white noise of sd σ with sd 6σ. The median keeps edges out. Texture counts as noise: an upper bound.
    """
    _, _, frames, seen = read_frames(data.points, layout, pixels)
    images, known = (x.movedim(-1, 2).flatten(0, 2)[:, None] for x in (frames, seen))  # (images, 1, H, W)
    if min(images.shape[-2:]) < 3:
        return math.inf
    second = images.new_tensor([1.0, -2.0, 1.0])
    answer = F.conv2d(images, (second[:, None] * second)[None, None])
    whole = F.max_pool2d((~known).to(images), 3, 1) == 0  # all nine pixels were seen
    return float(answer[whole].abs().median() / (6 * 0.6745)) if bool(whole.any()) else math.inf


def read_frames(points: Context, layout: PatchLayout, pixels: Pixels) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Frames of a context: times (B, T), which exist (B, T), pixels and seen pixels (B, T, H, W, C)."""
    t, tokens = points.coords[..., 0], points.tokens
    frame, slot, count = _slots(points, layout, pixels)
    exists = torch.zeros(len(t), count, dtype=torch.bool, device=t.device).scatter_reduce(1, frame, tokens, "amax")
    latest = t.new_full((len(t), count), -torch.inf)
    latest = latest.scatter_reduce(1, frame, t.masked_fill(~tokens, -torch.inf), "amax")
    times = torch.where(exists, latest, torch.zeros_like(latest))
    complete = int(exists.sum()) * layout.grid[0] * layout.grid[1] == int(tokens.sum())
    if complete and int(tokens.sum()) * layout.c == int(points.observed.sum()):  # the usual case, at half the cost
        values = _place(points.values, slot, count, layout)
        return times, exists, values, exists[..., None, None, None].expand_as(values)
    values, seen = (_place(x, slot, count, layout) for x in (points.values * points.observed, points.observed))
    return times, exists, values, seen


def move_patches(
    points: Context, target: Tensor, layout: PatchLayout, pixels: Pixels, offset: tuple[int, int]
) -> tuple[Context, Tensor]:
    """The same frames, and another value of each pixel, in patches that lie ``offset`` pixels further.

    Patches of frames that are not periodic are unobserved where they would leave the frame.
    """
    _, slot, count = _slots(points, layout, pixels)

    def moved(x: Tensor) -> Tensor:
        return _cut(_place(x, slot, count, layout).roll((-offset[0], -offset[1]), (2, 3)), slot, layout)

    observed = moved(points.observed)
    where = points.coords.clone()
    for axis, step in enumerate(offset):
        where[..., 1 + axis] += step / float(pixels[1][axis])
        if step and not layout.periodic:
            last = _pixel(where[..., 1 + axis], pixels, axis) + (layout.patch[axis] - 1) / 2
            observed &= (last < layout.padded[axis] - 0.5)[..., None]
    return Context(where, moved(points.values), observed), moved(target)


def change_frames(points: Context, layout: PatchLayout, pixels: Pixels, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Values of the same patches after ``change``, a function of whole frames (B, T, H, W, C)."""
    _, slot, count = _slots(points, layout, pixels)
    frames = _place(points.values, slot, count, layout)
    inside = (slice(None), slice(None), slice(layout.frame[0]), slice(layout.frame[1]))
    frames[inside] = change(frames[inside])
    return _cut(frames, slot, layout)


def loud_patches(points: Context, target: Tensor, layout: PatchLayout, pixels: Pixels, waves: Waves) -> Tensor:
    """Other values of the same patches without the bands of waves that are noise alone; all pixels must be seen."""
    _, slot, count = _slots(points, layout, pixels)
    frames = _place(target, slot, count, layout)
    return _cut(waves.join(waves.split(frames), *layout.frame), slot, layout)


def _slots(points: Context, layout: PatchLayout, pixels: Pixels) -> tuple[Tensor, Tensor, int]:
    """Of each token the number of its frame and its place among all patches (B, n); the number of frames."""
    coords, tokens = points.coords, points.tokens
    t = coords[..., 0]
    later = torch.zeros_like(tokens)
    later[:, 1:] = t[:, 1:] > t[:, :-1]
    frame = later.cumsum(1)  # padding repeats the last
    count = int(frame.max()) + 1
    rows, cols = layout.grid
    row, col = ((_pixel(coords[..., 1 + i], pixels, i) - (layout.patch[i] - 1) / 2) / layout.patch[i] for i in (0, 1))
    site = row.round().long().clamp(0, rows - 1) * cols + col.round().long().clamp(0, cols - 1)
    # Tokens that do not exist all go to one slot past the end.
    return frame, torch.where(tokens, frame * rows * cols + site, count * rows * cols), count


def _place(x: Tensor, slot: Tensor, count: int, layout: PatchLayout) -> Tensor:
    """Frames (B, T, H, W, C) of tokens (B, n, c)."""
    (rows, cols), (p, q) = layout.grid, layout.patch
    flat = x.new_zeros(len(x), count * rows * cols + 1, layout.c)
    flat.scatter_(1, slot[..., None].expand_as(x), x)
    grid = flat[:, :-1].unflatten(1, (count, rows, cols)).unflatten(-1, (p, q, layout.channels))
    return grid.permute(0, 1, 2, 4, 3, 5, 6).flatten(4, 5).flatten(2, 3)


def _cut(frames: Tensor, slot: Tensor, layout: PatchLayout) -> Tensor:
    """Tokens (B, n, c) of frames: the inverse of `_place`."""
    (rows, cols), (p, q) = layout.grid, layout.patch
    grid = frames.unflatten(3, (cols, q)).unflatten(2, (rows, p)).permute(0, 1, 2, 4, 3, 5, 6)
    flat = torch.cat([grid.flatten(4).flatten(1, 3), frames.new_zeros(len(frames), 1, layout.c)], 1)
    return flat.gather(1, slot[..., None].expand(-1, -1, layout.c))


def _fill(frames: Tensor, seen: Tensor, exists: Tensor) -> Tensor:
    """Pixels missing in some frames take their mean over the others; never seen ones stay 0."""
    if bool((seen | ~exists[..., None, None, None]).all()):
        return frames
    mean = (frames * seen).sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp_min(1)
    return torch.where(seen, frames, mean)


def _pixel(x: Tensor, pixels: Pixels, axis: int) -> Tensor:
    return float(pixels[0][axis]) + float(pixels[1][axis]) * x


def _position(x: Series, axis: int, layout: PatchLayout, pixels: Pixels) -> tuple[Tensor, Series]:
    """First pixel of each patch along an axis, (B, m) integers, and the fraction beyond it as a series."""
    size = layout.patch[axis - 1]
    where = x.map(lambda c: c[..., axis] * float(pixels[1][axis - 1]))
    value = where.value + float(pixels[0][axis - 1]) - (size - 1) / 2
    held = value if layout.periodic else value.clamp(0, layout.padded[axis - 1] - size)
    first = torch.floor(held + 1e-4)
    tail = where.coefs[1:] * ((held - value).abs() < 1e-4)
    return first.long(), Series(torch.cat([(held - first).unsqueeze(0), tail]), x.order, x.directions)


def _distinct(t: Tensor) -> tuple[Tensor, Tensor]:
    """Moments of each row of times (B, m), (B, u), and which of them each time is, (B, m).

    >>> [x.tolist() for x in _distinct(torch.tensor([[3.0, 1.0, 3.0], [2.0, 2.0, 2.0]]))]
    [[[1.0, 3.0], [2.0, 2.0]], [[1, 0, 1], [0, 0, 0]]]
    """
    ordered, place = t.sort(1)
    rank = F.pad((ordered[:, 1:] > ordered[:, :-1]).cumsum(1), (1, 0))
    which = torch.empty_like(place).scatter(1, place, rank)
    moments = ordered[:, -1:].repeat(1, int(rank.max()) + 1).scatter(1, rank, ordered)
    return moments, which


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
