"""Frames of the explorer: a picture at any time and resolution, its derivatives, attention and waves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float

from cstformer.data.fine_frames import fine_frames
from cstformer.data.layout import PatchLayout
from cstformer.data.patches import samples_to_frames
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.explorer.curves import band
from cstformer.models.cst import CST
from cstformer.models.reader import Reader
from cstformer.taylor.wave_speed import FLAT as FLAT
from cstformer.taylor.wave_speed import wave_velocity as wave_velocity

VALUE, SLOPE = (0, 0, 0), (1, 0, 0)
GRADIENT = ((0, 1, 0), (0, 0, 1))


@dataclass(frozen=True)
class Recording:
    """The observed frames of one sample of patch tokens."""

    sample: Samples

    @cached_property
    def layout(self) -> PatchLayout:
        """Layout of the patches in a frame."""
        if self.sample.layout is None:
            raise CSTError("these samples are points, not frames; this model was trained on frames and needs frames")
        return self.sample.layout

    @cached_property
    def times(self) -> Float[np.ndarray, " T"]:
        """Distinct times of the tokens."""
        return np.unique(self.sample.coords[0, self.sample.point_observed[0], 0])

    @cached_property
    def frames(self) -> Float[np.ndarray, "T H W C"]:
        """Frames at `times`; NaN where nothing was observed."""
        return samples_to_frames(self.sample.sorted())[0]

    @cached_property
    def exists(self) -> Bool[np.ndarray, "H W"]:
        """Mask of the pixels that were ever observed."""
        return ~np.isnan(self.frames).all(axis=(0, 3))

    def nearest(self, t: float) -> int:
        """Index of the frame whose time is nearest to `t`."""
        return int(np.abs(self.times - t).argmin())


def pictures(
    reader: Reader, t: float, zoom: int = 1, overlap: int = 1, *, slope: bool = True, gradient: bool = False
) -> Float[np.ndarray, "k h w C"]:
    """Value of the whole frame at `t`, its time derivative and, with `gradient`, those along rows and columns.

    Fine pixel i lies at i / zoom; see `fine_frames` for `overlap`. One pass gives all of them.
    """
    wanted = (VALUE, *((SLOPE,) if slope else ()), *(GRADIENT if gradient else ()))
    layout = reader.model.layout_
    assert layout is not None
    overlap = min(overlap, *layout.patch)
    ask = lambda at: np.concatenate(reader.partials(at, wanted))  # noqa: E731
    return fine_frames(ask, layout, [t], zoom=zoom, overlap=overlap)[:, 0]


def arrows(velocity: Float[np.ndarray, "2 h w"], zoom: int, count: int = 16) -> dict[str, Float[np.ndarray, " arrows"]]:
    """Ends x0, y0, x1, y1 of arrows in pixels of the data, about `count` along the longer side.

    Lengths are proportional to speed up to its 95 % quantile, at which an arrow fills its cell. Arrows shorter than a
    fifth of that are left out.
    """
    step = max(1, round(max(velocity.shape[1:]) / count))
    rows, cols = (np.arange(step // 2, size, step) for size in velocity.shape[1:])
    v = velocity[:, rows][:, :, cols]
    y0, x0 = np.meshgrid(rows / zoom, cols / zoom, indexing="ij")
    speed = np.sqrt((v**2).sum(0))
    moving = np.isfinite(speed) & (speed > 0)
    if not moving.any():
        return {name: np.zeros(0) for name in ("x0", "y0", "x1", "y1")}
    share = np.minimum(1.0, speed / np.quantile(speed[moving], 0.95))
    drawn = moving & (share >= 0.2)
    v, speed, y0, x0 = v[:, drawn], speed[drawn], y0[drawn], x0[drawn]
    length = 0.9 * step / zoom * share[drawn]
    dy, dx = v / speed * length
    return {"x0": x0 - dx / 2, "y0": y0 - dy / 2, "x1": x0 + dx / 2, "y1": y0 + dy / 2}


def attention_frames(
    reader: Reader, place: tuple[float, float, float], layer: int | None = None
) -> tuple[Float[np.ndarray, " T"], Float[np.ndarray, "T rows cols"]]:
    """Times of the observed frames, and the attention of the patch at `place` to each of their patches.

    Attention is relative to uniform attention and averaged over heads.

    Parameters
    ----------
    place : time, row and column of the centre of the patch that reads
    layer : index of the layer; by default the mean of all layers
    """
    film = Recording(reader.context)
    maps = reader.attention(np.array([place]))[0, :, :, 0].mean(1)  # (layers, n)
    share = maps.mean(0) if layer is None else maps[layer]
    real = reader.context.point_observed[0]
    coords, rows, cols = reader.context.coords[0, real], *film.layout.grid
    cell = np.rint((coords[:, 1:] - film.layout.half) / film.layout.patch).astype(int)
    out = np.full((len(film.times), rows, cols), np.nan)
    out[np.searchsorted(film.times, coords[:, 0]), cell[:, 0], cell[:, 1]] = share[real] * real.sum()
    return film.times, out


def mosaic(tiles: Float[np.ndarray, "T h w"], columns: int) -> Float[np.ndarray, "H W"]:
    """Arrange tiles row by row, with a gap of one pixel between them; gaps and empty tiles are NaN.

    >>> mosaic(np.arange(3.0).reshape(3, 1, 1), 2).tolist()
    [[0.0, nan, 1.0], [nan, nan, nan], [2.0, nan, nan]]
    """
    count, h, w = tiles.shape
    rows = -(-count // columns)
    out = np.full((rows * (h + 1) - 1, columns * (w + 1) - 1), np.nan)
    for i, tile in enumerate(tiles):
        top, left = i // columns * (h + 1), i % columns * (w + 1)
        out[top : top + h, left : left + w] = tile
    return out


def pixel_trace(reader: Reader, pixel: tuple[int, int], times: Float[np.ndarray, " m"]) -> Float[np.ndarray, "m C"]:
    """Value of one pixel at any times, from the patch of the grid that contains it."""
    layout = reader.model.layout_
    assert layout is not None
    return _of_pixel(reader.partials(_patch_at(layout, pixel, times), (VALUE,))[0][0], layout, pixel)


def pixel_band(
    model: CST, sample: Samples, pixel: tuple[int, int], times: Float[np.ndarray, " m"]
) -> tuple[float, Float[np.ndarray, "m C"], Float[np.ndarray, "m C"]] | None:
    """Level, lower and upper bounds of new observations of one pixel; None if the model has too few scores."""
    layout = model.layout_
    assert layout is not None
    found = band(model, sample, _patch_at(layout, pixel, times))
    if found is None:
        return None
    level, low, high = found
    return level, _of_pixel(low, layout, pixel), _of_pixel(high, layout, pixel)


def _patch_at(layout: PatchLayout, pixel: tuple[int, int], times: Float[np.ndarray, " m"]) -> Float[np.ndarray, "m 3"]:
    """Coordinates of the patch that contains a pixel."""
    centre = np.floor_divide(pixel, layout.patch) * layout.patch + np.array(layout.half)
    return np.column_stack([times, np.tile(centre, (len(times), 1))])


def _of_pixel(
    values: Float[np.ndarray, "m c"], layout: PatchLayout, pixel: tuple[int, int]
) -> Float[np.ndarray, "m C"]:
    """The pixel out of the values of its patch."""
    row, col = np.mod(pixel, layout.patch)
    return values.reshape(len(values), *layout.patch, layout.channels)[:, row, col]


def outline(exists: Bool[np.ndarray, "H W"]) -> tuple[list[list[float]], list[list[float]]]:
    """Edges between existing and missing pixels, as x and y of their ends; a full frame has none.

    >>> outline(np.array([[True, False]]))
    ([[0.5, 0.5]], [[-0.5, 0.5]])
    """
    xs: list[list[float]] = []
    ys: list[list[float]] = []
    if exists.all():
        return xs, ys
    for row, col in np.argwhere(exists[:, 1:] != exists[:, :-1]).tolist():
        xs.append([col + 0.5, col + 0.5])
        ys.append([row - 0.5, row + 0.5])
    for row, col in np.argwhere(exists[1:] != exists[:-1]).tolist():
        xs.append([col - 0.5, col + 0.5])
        ys.append([row + 0.5, row + 0.5])
    return xs, ys


def outside_hidden(picture: Float[np.ndarray, "h w *C"], exists: Bool[np.ndarray, "H W"], zoom: int) -> np.ndarray:
    """Set the picture to NaN where no pixel of the data exists."""
    rows, cols = (
        np.minimum((np.arange(n) / zoom + 0.5).astype(int), size - 1)
        for n, size in zip(picture.shape[:2], exists.shape, strict=True)
    )
    inside = exists[np.ix_(rows, cols)]
    return np.where(inside.reshape(*inside.shape, *(1,) * (picture.ndim - 2)), picture, np.nan)


def as_samples(picture: Float[np.ndarray, "2 h w C"], t: float, zoom: int, film: Recording) -> Samples:
    """Value and time derivative of a frame as samples that can be saved, one point per fine pixel."""
    _, h, w, channels = picture.shape
    row, col = np.meshgrid(np.arange(h) / zoom, np.arange(w) / zoom, indexing="ij")
    shown = outside_hidden(np.moveaxis(picture, 0, -1).reshape(h, w, -1), film.exists, zoom)
    suffix = [""] if channels == 1 else [str(i) for i in range(channels)]
    names = [f"{name}{i}" for i in suffix for name in ("value", "value_t")]
    coords = np.stack([np.full(h * w, t), row.ravel(), col.ravel()], 1)
    coord_names = film.sample.coord_names
    return Samples(
        coords[None],
        shown.reshape(1, h * w, -1),
        coord_names=coord_names,
        value_names=names,
        sample_ids=film.sample.sample_ids,
        units={k: v for k, v in film.sample.units.items() if k in coord_names},
        origin=film.sample.origin,
    )
