"""Samples of different noise: each gets its own, so that copying it is rewarded in none of them."""

import numpy as np
import pytest
import torch

from cstformer.data.patches import frames_to_samples
from cstformer.experiments.navier_stokes.noise_levels import CSTOfLevels


@pytest.mark.parametrize("noise", ["auto", 0.05])
def test_copying_the_noise_is_rewarded_at_no_level(noise):
    """Smooth frames under noise of sd 0.05 to 0.4: what is left of input and target is uncorrelated in each sample.

    With one noise for all, σ, the best factor of the input's noise n + z in the target n − z would be
    (s² − σ²) / (s² + σ²) at level s: −0.9 at the lowest and 0.7 at the highest level.
    """
    rng = np.random.default_rng(0)
    x = np.arange(32) / 32
    levels = np.repeat([0.05, 0.15, 0.4], 4)
    phase = rng.uniform(0, 2 * np.pi, (12, 1, 1, 1))
    clean = (
        np.sin(2 * np.pi * x[:, None] + phase) + np.cos(2 * np.pi * x + phase) * np.linspace(0.5, 1, 4)[:, None, None]
    )
    samples = frames_to_samples(
        (clean + levels[:, None, None, None] * rng.normal(size=clean.shape))[..., None], periodic=True
    )
    model = CSTOfLevels.preset("smoke", steps=1, order=0, noise=noise, hide=0.0).fit(samples)
    cpu = torch.device("cpu")
    data = model.kind_.batch(samples, torch.float64, cpu)
    truth = model.kind_.batch(frames_to_samples(clean[..., None], periodic=True), torch.float64, cpu)
    objective = model._objective(0.0, model)
    sd = objective.sample_noise(data).flatten().numpy() * model.scaling_.sd[0]
    np.testing.assert_allclose(sd, levels, rtol=0.1)
    copied = []
    for seed in range(8):
        context, target = objective.disturb(data, data.exists, torch.Generator().manual_seed(seed))
        shown, wanted = context.values - truth.values, target - truth.values
        copied.append((shown * wanted).mean((1, 2)) / shown.square().mean((1, 2)))
    assert torch.stack(copied).mean(0).abs().max() < 0.15  # the noise is estimated to a few per cent
