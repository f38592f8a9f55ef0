"""What a training step hides and disturbs: the same for CST and every rival.

A step hides some points of each sample, or single cells, adds noise to the rest (or draws a corruption of it), and asks
the model for all of them. The order of the random draws is fixed: hiding first, then corruption or noise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from cstformer.data.batch import widen
from cstformer.training.sharing import draw


@dataclass(frozen=True)
class Disturbance:
    """Hiding and noise of a training step.

    Attributes
    ----------
    hide : float
        Largest fraction of a sample's points, or cells, hidden in a step.
    noise : float, or one for each channel
        Standard deviation of the added noise, in standardised units.
    data_noise : float, or one for each channel
        Estimated noise already in the data, same units.
    independent : bool
        Whether targets of visible cells get the opposite noise, see `add_noise`; only the squared loss allows it.
    cells : float
        Share of the samples that hide single cells (one channel of one point) instead of whole points.
    """

    hide: float = 0.0
    noise: float | tuple[float, ...] = 0.0
    data_noise: float | tuple[float, ...] = 0.0
    independent: bool = True
    cells: float = 0.0

    def keep(
        self,
        observed: Bool[Tensor, "B n *S"],
        exists: Bool[Tensor, "B n"],
        generator: Generator,
        groups: Int[Tensor, "B n"] | None = None,
    ) -> Bool[Tensor, "B n *S"]:
        """Draw which cells stay visible: of each sample all cells of some points, or single cells."""
        keep = widen(hide_points(exists, self.hide, generator, groups), observed).expand_as(observed)
        if self.cells == 0:
            return keep
        single = draw(torch.rand, (len(observed),), generator).to(observed.device) < self.cells
        return torch.where(widen(single, observed), hide_cells(observed, self.hide, generator), keep)

    def add_noise(
        self,
        values: Float[Tensor, "B n *S"],
        keep: Bool[Tensor, "B n *_"],
        generator: Generator,
    ) -> tuple[Float[Tensor, "B n *S"], Float[Tensor, "B n *S"]]:
        """Noisy values, and the targets of all cells; ``keep`` says which cells, or whole points (B, n), are visible.

        With noise ε of standard deviation s on the input, and noise σ already in the data, a visible cell's target is
        y − (σ/s)² ε. Its error is then independent of that of the input y + ε (recorrupted-to-recorrupted, Pang et
        al. 2021): copying the noise of the data is not rewarded. The target of a hidden cell is y itself.
        """
        if np.max(self.noise) <= 0:
            return values, values
        scale = values.new_tensor(self.noise)
        noise = scale * draw(torch.randn, values.shape, generator, dtype=torch.float64).to(values)
        if not self.independent or np.max(self.data_noise) <= 0:
            return values + noise, values
        ratio = (values.new_tensor(self.data_noise) / scale.clamp_min(torch.finfo(scale.dtype).tiny)) ** 2
        return values + noise, values - ratio * noise * widen(keep, noise)


def noise_levels(
    noise: float | str, found: tuple[float, ...], share: float = 1.0
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Noise that a step adds to each channel, and noise that it takes the data to have.

    Parameters
    ----------
    noise : the setting, a number or ``auto``
    found : noise estimated from the data, of each channel
    share : added noise over noise of the data, where it is automatic

    >>> noise_levels("auto", (0.2, 0.1), share=0.5)
    ((0.1, 0.05), (0.2, 0.1))
    >>> noise_levels(0.15, (0.2, 0.1))
    ((0.15, 0.15), (0.15, 0.1))
    """
    if isinstance(noise, str):
        return tuple(share * s for s in found), found
    # A user who sets less noise than was found knows better.
    return (float(noise),) * len(found), tuple(min(float(noise), s) for s in found)


def root_mean_square(noises: tuple[float, ...]) -> float:
    """One number for the noise of all channels."""
    return float(np.sqrt(np.mean(np.square(noises))))


def hide_points(
    exists: Bool[Tensor, "B n"],
    largest: float,
    generator: Generator | None = None,
    groups: Int[Tensor, "B n"] | None = None,
) -> Bool[Tensor, "B n"]:
    """Which points stay visible: each sample hides a random share of its points, between none and ``largest``.

    The share is rounded to whole points, and two points always stay. ``groups``, integers that increase with time,
    hides points together (all patches of a frame), at least one group; the first and the last group stay, because
    frames are asked for between given ones.

    Returns
    -------
    Tensor (B, n) of bool
        True where a point exists and stays visible.
    """
    batch, n = exists.shape
    share = draw(torch.rand, (batch, 1), generator).to(exists.device) * largest
    scores = draw(torch.rand, (batch, n), generator).to(exists.device)
    units = exists  # what is hidden as a whole: points, or groups of points
    if groups is not None:
        units = torch.zeros_like(exists).scatter_reduce(1, groups, exists, "amax")
        before, after = units.cumsum(1), units.flip(1).cumsum(1).flip(1)
        scores = scores.masked_fill((before == 1) | (after == 1), 1.5)  # the ends come last, and two always stay
    count = units.sum(1, keepdim=True)
    hidden = (share * count).round()
    if groups is not None and largest > 0:
        hidden = hidden.clamp_min(1)
    hidden = torch.minimum(hidden, (count - 2).clamp_min(0))
    rank = scores.masked_fill(~units, 2.0).argsort(1).argsort(1)
    keep = rank >= hidden
    if groups is not None:
        keep = keep.gather(1, groups)
    return keep & exists


def hide_cells(
    observed: Bool[Tensor, "B n *S"], largest: float, generator: Generator | None = None
) -> Bool[Tensor, "B n *S"]:
    """Which observed cells stay visible: as `hide_points`, with cells in the place of points."""
    return hide_points(observed.flatten(1), largest, generator).view_as(observed)


def hide_for_validation(
    observed: Bool[Tensor, "B n *S"],
    exists: Bool[Tensor, "B n"],
    hide: float,
    cells: float,
    generator: Generator,
    groups: Int[Tensor, "B n"] | None = None,
    tries: int = 20,
) -> Bool[Tensor, "B n *S"]:
    """Draw until at least one point is hidden wherever a sample has three; a few samples may keep all of them.

    Where training hides single cells, so does the same share of the samples here: validation is scored on both.
    """
    keep = exists
    for _ in range(tries):
        drawn = hide_points(exists, hide, generator, groups)
        keep = torch.where((keep == exists).all(1, keepdim=True), drawn, keep)
    keep = widen(keep, observed).expand_as(observed)
    if cells == 0:
        return keep
    number = torch.arange(len(observed), device=observed.device, dtype=torch.float64)
    single = ((number + 1) * cells).floor() > (number * cells).floor()  # spread evenly over the samples
    return torch.where(widen(single, observed), hide_cells(observed, hide, generator), keep)


def validation_patterns(samples: int, points: int, tokens: int) -> int:
    """How many hiding patterns a validation set has of each sample: more where samples are few and small."""
    return max(1, min(16, 128 // samples, tokens // (samples * points)))
