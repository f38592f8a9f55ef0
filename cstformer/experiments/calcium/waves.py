"""Waves of known speed, to test velocities that are computed from derivatives.

Rings grow around a random centre, inside the frame or outside, with the widths and speeds of the simulator's
spontaneous waves. The velocity at a pixel points away from the centre and has the speed of the wave. Frames come at
10 Hz, with noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Float
from scipy.ndimage import gaussian_filter

from cstformer.data.fine_frames import fine_frames
from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frames_to_samples
from cstformer.data.samples import Samples
from cstformer.models.cst import CST
from cstformer.taylor.wave_speed import difference_velocity, flow_velocity, velocity_errors, wave_velocity

PIXEL_MM = 10 / 64
SIZE, PATCH = 32, 8  # pixels
LAYOUT = PatchLayout((SIZE, SIZE), (PATCH, PATCH))
STEP, FRAMES = 0.1, 8
WIDTHS, SPEEDS = (0.5, 1.2), (3.0, 12.0)  # mm and mm/s
STEEP = 0.3  # pixels count if their slope in space is at least this share of the largest
BLUR = 1.5  # standard deviation in pixels
FINITE, BLURRED, FLOW, BLURRED_FLOW = (
    "finite differences",
    "blur + finite differences",
    "optical flow",
    "blur + optical flow",
)
METHODS = (FINITE, BLURRED, FLOW, BLURRED_FLOW)


@dataclass(frozen=True)
class Rings:
    """Movies of one wave each; lengths in pixels, times in seconds."""

    centre: Float[np.ndarray, "N 2"]
    radius: Float[np.ndarray, " N"]
    """Radius at the time `MIDDLE`."""
    width: Float[np.ndarray, " N"]
    speed: Float[np.ndarray, " N"]
    frames: Float[np.ndarray, "N T H W"]
    """With noise."""

    @property
    def times(self) -> Float[np.ndarray, " T"]:
        """Times of the frames."""
        return STEP * np.arange(FRAMES)

    def __len__(self) -> int:
        return len(self.speed)

    def samples(self) -> Samples:
        """Patch tokens."""
        return frames_to_samples(self.frames[..., None], LAYOUT.patch, times=self.times, time_unit="s")

    def truth(self, i: int) -> tuple[Float[np.ndarray, "2 H W"], Bool[np.ndarray, "H W"]]:
        """Velocity of wave i, and where it is steep enough to be seen."""
        radius, away = _polar(self.centre[i], SIZE)
        z = (radius - self.radius[i]) / self.width[i]
        slope = np.abs(z) * np.exp(-(z**2) / 2)
        return self.speed[i] * away, slope >= STEEP * slope.max()


MIDDLE = STEP * (FRAMES - 1) / 2
"""Time at which velocities are compared, halfway between two frames."""


@lru_cache(maxsize=2)
def make_rings(count: int, noise: float, seed: int) -> Rings:
    """Random waves that cross the frame in the middle of their movie."""
    random, size = np.random.default_rng([seed, 11]), SIZE
    centre = size * random.uniform(-0.5, 1.5, (count, 2))
    width = random.uniform(*WIDTHS, count) / PIXEL_MM
    speed = random.uniform(*SPEEDS, count) / PIXEL_MM
    away = np.hypot(*(centre - (size - 1) / 2).T) + size * random.uniform(-0.2, 0.2, count)
    radius = np.maximum(away, width)
    frames = np.empty((count, FRAMES, size, size))
    for i in range(count):
        distance = _polar(centre[i], size)[0] - radius[i]
        for k in range(FRAMES):
            frames[i, k] = np.exp(-(((distance - speed[i] * (STEP * k - MIDDLE)) / width[i]) ** 2) / 2)
    frames += noise * random.standard_normal(frames.shape)
    return Rings(centre, radius, width, speed, frames)


def _polar(centre: np.ndarray, size: int) -> tuple[Float[np.ndarray, "H W"], Float[np.ndarray, "2 H W"]]:
    """Distance of each pixel from the centre, and the direction away from it."""
    place = np.stack(np.meshgrid(np.arange(size), np.arange(size), indexing="ij")) - centre[:, None, None]
    radius = np.maximum(np.hypot(*place), 1e-9)
    return radius, place / radius


def classical_velocity(method: str, frames: Float[np.ndarray, "T H W"]) -> Float[np.ndarray, "2 H W"]:
    """Velocity in the middle of a movie by one of `METHODS`."""
    before, after = frames[FRAMES // 2 - 1 : FRAMES // 2 + 1]
    if method in (BLURRED, BLURRED_FLOW):
        before, after = (gaussian_filter(frame, BLUR) for frame in (before, after))
    if method in (FLOW, BLURRED_FLOW):
        return flow_velocity(before, after, STEP)
    return difference_velocity(before, after, STEP, flat=0.0)


def model_velocity(model: CST, context: Samples, overlap: int) -> Float[np.ndarray, "N 2 H W"]:
    """Velocities in the middle of each movie, from the model's own derivatives."""
    wanted = [(1, 0, 0), (0, 1, 0), (0, 0, 1)]
    made = []
    for one in context:
        ask = lambda at, one=one: np.concatenate(model.derivatives(one, at, wanted))  # noqa: E731
        slope, *gradient = fine_frames(ask, LAYOUT, [MIDDLE], overlap=overlap)[:, 0, ..., 0]
        made.append(wave_velocity(slope, np.stack(gradient), flat=0.0))
    return np.stack(made)


def ring_errors(rings: Rings, velocities: Float[np.ndarray, "N 2 H W"]) -> dict[str, np.ndarray]:
    """Relative error of the speed, and error of the direction in degrees, of each wave."""
    errors = [velocity_errors(v, *rings.truth(i)) for i, v in enumerate(velocities)]
    speed, direction = np.array(errors).T
    return {"speed": speed, "direction": direction}
