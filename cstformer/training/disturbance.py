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
    noisy : float
        Share of the samples that get noise; see `draw_noisy`.
    """

    hide: float = 0.0
    noise: float | tuple[float, ...] = 0.0
    data_noise: float | tuple[float, ...] = 0.0
    independent: bool = True
    cells: float = 0.0
    noisy: float = 1.0

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

    def draw_noisy(
        self, observed: Bool[Tensor, "B n *S"], keep: Bool[Tensor, "B n *S"], generator: Generator
    ) -> Bool[Tensor, " B"] | None:
        """Draw which samples get noise; None: all of them.

        Samples without added noise look as they will when the model is used, and teach best what hidden cells are.
        Their visible cells cannot be targets, since the model is given them as they are. So some samples need noise,
        and all of those in which nothing is hidden.
        """
        if self.noisy >= 1 or self.hide == 0 or np.max(self.noise) <= 0:
            return None
        drawn = draw(torch.rand, (len(observed),), generator).to(observed.device) < self.noisy
        return drawn | ~(observed & ~keep).flatten(1).any(1)

    def add_noise(
        self,
        values: Float[Tensor, "B n *S"],
        keep: Bool[Tensor, "B n *_"],
        generator: Generator,
        noisy: Bool[Tensor, " B"] | None = None,
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
        if noisy is not None:
            noise = noise * widen(noisy, noise)
        if not self.independent or np.max(self.data_noise) <= 0:
            return values + noise, values
        ratio = (values.new_tensor(self.data_noise) / scale.clamp_min(torch.finfo(scale.dtype).tiny)) ** 2
        return values + noise, values - ratio * noise * widen(keep, noise)


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
