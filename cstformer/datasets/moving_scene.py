r"""A synthetic driving scene, exact at any time and place: a function (t, row, col) → colour in [0, 1].

The scene is a stack of layers. The first is opaque and far away, the others have holes and lie nearer and nearer. A
camera moves in front of them: the point x of the picture shows layer l, at depth :math:`z_l`, at

.. math:: q_l(t, x) = c + e^{-\text{zoom}\, t / z_l} (x - c) + \frac{\text{path}(t)}{z_l}, \qquad
          \text{path}(t) = v t + s \sin(2π t / 12),

with c the centre of the picture, so that near layers move and grow faster (parallax). The colour of a layer at q, and
the shape of its holes, are sums of plane waves whose frequencies are spread evenly over the octaves with equal
amplitudes: the 1/f spectrum of natural pictures. Holes have edges about a pixel wide, where a layer hides those behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

from cstformer.data.arrays import as_floats
from cstformer.datasets.video import SIZE, Recording
from cstformer.errors import CSTError

COARSEST, FINEST = 1 / 200, 1 / 5
"""Frequencies of the textures, in cycles per pixel; holes use the coarser half of the octaves."""
CONTRAST = 0.4
"""Standard deviation of a layer's texture before it is squashed into [0, 1]."""
PERIOD = 12
"""Period of the camera's sway, in frames."""


@dataclass(frozen=True)
class MovingScene:
    """One scene; each seed gives a different one.

    Times count frames, rows and columns count pixels, and all three may be any real numbers.

    >>> scene = MovingScene(seed=1)
    >>> scene(0.25, 10.0, [20.0, 20.5]).shape
    (2, 3)
    >>> movie = scene.frames([0, 0.25])
    >>> movie.shape, bool(np.allclose(movie[1, 10, 20], scene(0.25, 10, 20)))
    ((2, 128, 160, 3), True)
    """

    seed: int = 0
    size: tuple[int, int] = SIZE
    """Height and width of the frames."""
    layers: int = 3
    speed: float = 3.0
    """Mean speed of the nearest layer in pixels per frame, in a random direction."""
    sway: float = 2.0
    """Amplitude of its sway about that path, in pixels."""
    zoom: float = 0.01
    """Relative growth of the nearest layer per frame."""
    waves: int = 48
    """Plane waves in each colour and in the holes of each layer."""

    def __post_init__(self) -> None:
        if self.layers < 1 or self.waves < 1:
            raise CSTError(f"layers={self.layers} and waves={self.waves} must both be at least 1")

    @property
    def depths(self) -> Float[np.ndarray, " layers"]:
        """Depth of each layer, the far one first; the nearest has depth one."""
        return 2.0 ** np.arange(self.layers)[::-1]

    def seen_at(self, layer: int, t: ArrayLike, row: ArrayLike, col: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
        """Place (row, col) on a layer that pixel (row, col) shows at time t: the exact motion."""
        t, row, col = (as_floats(name, x) for name, x in (("t", t), ("row", row), ("col", col)))
        depth, grow = self.depths[layer], np.exp(-self.zoom * t / self.depths[layer])
        (along, aside), (height, width) = self._angles, self.size
        way, swing = self.speed * t / depth, self.sway * np.sin(2 * np.pi * t / PERIOD) / depth
        down, right = way * np.sin(along) + swing * np.sin(aside), way * np.cos(along) + swing * np.cos(aside)
        return (
            (height - 1) / 2 + grow * (row - (height - 1) / 2) + down,
            (width - 1) / 2 + grow * (col - (width - 1) / 2) + right,
        )

    def __call__(self, t: ArrayLike, row: ArrayLike, col: ArrayLike) -> Float[np.ndarray, "*shape 3"]:
        """Colours in [0, 1] at times and places, which broadcast against each other."""
        picture: np.ndarray | None = None
        for layer in range(self.layers):
            texture, shape, mean = self._layers[layer]
            r, c = self.seen_at(layer, t, row, col)
            hues = mean + CONTRAST * np.stack([_sum(waves, r, c) for waves in texture], -1)
            colour = 0.5 + 0.5 * np.tanh(hues @ _MIX)
            if picture is None:
                picture = colour
                continue
            opaque = 0.5 + 0.5 * np.tanh(2 * _sum(shape, r, c) / _slope(shape))  # 0 to 1 over about a pixel
            picture = picture + opaque[..., None] * (colour - picture)
        assert picture is not None
        return picture

    def frames(self, times: ArrayLike) -> Float[np.ndarray, "T H W 3"]:
        """Whole frames at any times."""
        t = np.atleast_1d(as_floats("times", times))
        rows, cols = np.arange(self.size[0]), np.arange(self.size[1])
        return np.concatenate([self(t[i : i + 1, None, None], rows[:, None], cols) for i in range(len(t))])

    def recording(self, length: int) -> Recording:
        """Frames 0, 1, 2... as an 8-bit camera would record them; each is computed when it is read."""

        def read(start: int, stop: int) -> Iterator[np.ndarray]:
            return (np.rint(255 * self.frames(t)[0]).astype(np.uint8) for t in range(start, stop))

        return Recording(f"scene-{self.seed}", length, read, self.size)

    @cached_property
    def _angles(self) -> np.ndarray:
        return np.random.default_rng([self.seed, 0]).uniform(0, 2 * np.pi, 2)

    @cached_property
    def _layers(self) -> list[tuple[list[np.ndarray], np.ndarray, np.ndarray]]:
        """For each layer: waves of brightness and two hues, waves of its holes, mean brightness and hues."""
        layers = []
        for layer in range(self.layers):
            rng = np.random.default_rng([self.seed, 1 + layer])
            texture = [_waves(rng, self.waves, COARSEST, FINEST) for _ in range(3)]
            shape = _waves(rng, self.waves, COARSEST, np.sqrt(COARSEST * FINEST))
            layers.append((texture, shape, rng.normal(0, 0.8, 3)))
        return layers


_MIX = np.array([[1.0, 1.0, 1.0], [0.3, 0.0, -0.3], [0.15, -0.3, 0.15]])
"""Red, green and blue of brightness and of two hues; the hues are weaker, as in photographs."""


def _waves(rng: np.random.Generator, count: int, low: float, high: float) -> Float[np.ndarray, "3 count"]:
    """Frequencies along rows and columns in cycles per pixel, and phases; equally many in each octave."""
    octave = (np.arange(count) + rng.random(count)) / count
    frequency, angle = low * (high / low) ** octave, rng.uniform(0, 2 * np.pi, count)
    return np.stack([frequency * np.sin(angle), frequency * np.cos(angle), rng.random(count)])


def _sum(waves: np.ndarray, row: np.ndarray, col: np.ndarray) -> np.ndarray:
    """√(2/n) Σ cos 2π(f·x + φ), of variance one. On a grid, the product of two exponentials saves most cosines."""
    of_row = np.exp(2j * np.pi * (row[..., None] * waves[0] + waves[2]))
    of_col = np.exp(2j * np.pi * col[..., None] * waves[1])
    return np.sqrt(2 / waves.shape[1]) * (
        np.einsum("...k,...k->...", of_row.real, of_col.real) - np.einsum("...k,...k->...", of_row.imag, of_col.imag)
    )


def _slope(waves: np.ndarray) -> float:
    """Root mean square slope of `_sum` along any direction, per pixel."""
    return float(2 * np.pi * np.sqrt((waves[:2] ** 2).sum(0).mean() / 2))
