"""Schematic dorsal cortex seen from above: outline, areas and smooth random maps, in mm from the centre.

Anterior is up and the left hemisphere is on the left. Positions are round numbers in the usual arrangement of the
mouse's areas, not an atlas. Everything is a function of position, so that every pixel grid shows the same cortex.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

FIELD_MM = 10.0
"""Side of the camera's field of view."""

LEFT_AREAS = {
    "V1": (-2.1, -2.0),
    "LM": (-3.1, -1.6),
    "AL": (-3.0, -0.9),
    "RL": (-2.4, -0.7),
    "AM": (-1.5, -0.8),
    "PM": (-1.1, -1.6),
    "RSP": (-0.4, -1.6),
    "AUD": (-3.6, -0.2),
    "S1 barrel": (-2.7, 0.6),
    "S1 limb": (-1.5, 0.7),
    "M1": (-1.6, 2.0),
    "M2": (-0.6, 2.1),
}
"""Centres (right, anterior) in mm of the areas of the left hemisphere; the right one mirrors them."""

AREAS = tuple(f"{side} {name}" for side in ("left", "right") for name in LEFT_AREAS)
"""Names of the labels 1, 2, … of `area_map`."""


def positions(size: tuple[int, int]) -> tuple[Float[np.ndarray, "1 W"], Float[np.ndarray, "H 1"]]:
    """Pixel centres: mm to the right, and mm towards anterior.

    >>> right, anterior = positions((2, 2))
    >>> right.tolist(), anterior.tolist()
    ([[-2.5, 2.5]], [[2.5], [-2.5]])
    """
    height, width = size
    right = (np.arange(width) + 0.5) / width * FIELD_MM - FIELD_MM / 2
    anterior = FIELD_MM / 2 - (np.arange(height) + 0.5) / height * FIELD_MM
    return right[None, :], anterior[:, None]


def outline(size: tuple[int, int]) -> Bool[np.ndarray, "H W"]:
    """Both hemispheres: the halves of an ellipse of 8 by 7.2 mm, separated by a midline of 0.2 mm."""
    right, anterior = positions(size)
    return ((right / 4.0) ** 2 + (anterior / 3.6) ** 2 < 1) & (np.abs(right) > 0.1)


def area_map(size: tuple[int, int]) -> Int[np.ndarray, "H W"]:
    """Label of each pixel: the area with the nearest centre; 0 is outside, 1 is ``AREAS[0]``.

    >>> labels = area_map((64, 64))
    >>> AREAS[labels[45, 18] - 1], AREAS[labels[45, 45] - 1], int(labels[0, 0])
    ('left V1', 'right V1', 0)
    """
    right, anterior = positions(size)
    centres = np.array([*LEFT_AREAS.values(), *((-x, y) for x, y in LEFT_AREAS.values())])
    # An area does not cross the midline: centres on the other side get a large distance.
    distance = (right[..., None] - centres[:, 0]) ** 2 + (anterior[..., None] - centres[:, 1]) ** 2
    distance = distance + 100 * (np.sign(right)[..., None] != np.sign(centres[:, 0]))
    return np.where(outline(size), distance.argmin(axis=-1) + 1, 0)


@dataclass(frozen=True)
class SmoothMaps:
    """Random maps Σ_j a_j cos(k_j · r + φ_j) of unit variance, with details no finer than ``scale`` mm."""

    wave: Float[np.ndarray, "maps terms 2"]
    phase: Float[np.ndarray, "maps terms"]
    amplitude: Float[np.ndarray, "maps terms"]

    @classmethod
    def draw(cls, rng: np.random.Generator, count: int, scale: float, terms: int = 8) -> SmoothMaps:
        """Draw ``count`` maps."""
        wave = rng.normal(scale=1 / scale, size=(count, terms, 2))
        return cls(wave, rng.uniform(0, 2 * np.pi, (count, terms)), np.full((count, terms), np.sqrt(2 / terms)))

    def on(self, size: tuple[int, int], blur: float = 0.0) -> Float[np.ndarray, "maps H W"]:
        """The maps on a grid of pixels, seen through a Gaussian blur of ``blur`` mm."""
        right, anterior = positions(size)
        faded = self.amplitude * np.exp(-(blur**2) / 2 * (self.wave**2).sum(axis=-1))
        # cos(u + v) = Re e^{iu} e^{iv}, so a map is a small matrix product.
        across = np.exp(1j * (self.wave[..., :1] * right[0] + self.phase[..., None]))
        along = np.exp(1j * self.wave[..., 1:] * anterior[:, 0])
        return ((faded[..., None] * along).transpose(0, 2, 1) @ across).real


def blob(
    size: tuple[int, int], centre: tuple[float, float], width: float, blur: float = 0.0
) -> Float[np.ndarray, "H W"]:
    """Gaussian of height 1 and sd ``width`` mm about ``centre``, seen through a blur of ``blur`` mm."""
    right, anterior = positions(size)
    variance = width**2 + blur**2
    square = (right - centre[0]) ** 2 + (anterior - centre[1]) ** 2
    return width**2 / variance * np.exp(-square / (2 * variance))
