"""Calibration on processes whose truth is known: variances, coverage, which points are hidden."""

import math

import numpy as np
import pytest
import torch

from cstformer.data.batch import Batch
from cstformer.data.samples import Samples
from cstformer.data.units import Scaling
from cstformer.errors import CSTError
from cstformer.models.calibration import MAX_SCORES, Calibration, calibrate, folds
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.points import Points

KERNEL = Kernel((0.15,), amplitude=1.0, offset=0.3, noise=0.2)
GENERATOR = torch.Generator().manual_seed(0)


def process_of(kernel: Kernel) -> Points:
    """Data whose prior is known."""
    kind = Points(Scaling(np.zeros(1), np.ones(1), np.zeros(1), np.ones(1)))
    kind.kernel = kernel
    return kind


def draw(t: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Functions of the process at times (N, n), without noise: (N, n)."""
    square = (t[:, :, None] - t[:, None, :]) ** 2 / 0.15**2
    factor = np.linalg.cholesky(np.exp(-square / 2) + 0.09 + 1e-9 * np.eye(t.shape[1]))
    return (factor @ rng.normal(size=(*t.shape, 1)))[..., 0]


def batch_of(t: np.ndarray, y: np.ndarray) -> Batch:
    coords, values = torch.tensor(t)[..., None], torch.tensor(y)[..., None]
    return Batch(coords, values, torch.ones_like(values, dtype=torch.bool))


def exact(context: Batch, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The best answer that there is."""
    kind = process_of(KERNEL)
    return kind.posterior_mean(context)(at), kind.spread("smooth", context)(at, (0,))


def test_the_exact_process_needs_no_correction():
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(size=(300, 12)), 1)
    batch = batch_of(t, draw(t, rng) + 0.2 * rng.normal(size=t.shape))
    found = calibrate(exact, batch, (0.2,), 1, 0.0, seed=0)
    assert found.process[0] == pytest.approx(1.0, rel=0.15)
    assert found.error[0] == pytest.approx(0.04, rel=0.15)
    # Normal errors: 90 % are within 1.645 standard deviations.
    assert found.factor(0.9, ["y"], np.empty((0, 1)))[0] == pytest.approx(1.645, rel=0.05)


@pytest.mark.parametrize("bias", [1.0, 0.5])
def test_intervals_cover_new_observations_and_the_function(bias):
    """Also if the answers are worse than those of the process, here half of its mean."""
    rng = np.random.default_rng(1)

    def answer(context: Batch, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values, variance = exact(context, at)
        return bias * values, variance

    t = np.concatenate([np.tile(np.linspace(0, 1, 12), (400, 1)), rng.uniform(size=(400, 20))], 1)
    clean = draw(t, rng)
    noisy = clean + 0.2 * rng.normal(size=t.shape)
    found = calibrate(answer, batch_of(t[:100, :12], noisy[:100, :12]), (0.2,), 1, 0.0, seed=0)
    values, process = (
        x.numpy() for x in answer(batch_of(t[100:, :12], noisy[100:, :12]), torch.tensor(t[100:, 12:, None]))
    )
    for level in (0.8, 0.9, 0.95):
        half = found.factor(level, ["y"], values) * np.sqrt(found.variance(process, noise=True))
        assert np.mean(np.abs(noisy[100:, 12:, None] - values) <= half) == pytest.approx(level, abs=0.03)
    squares = (clean[100:, 12:, None] - values) ** 2
    assert np.mean(squares / found.variance(process, noise=False)) == pytest.approx(1.0, abs=0.25)


def test_points_are_hidden_once_and_the_ends_never():
    observed = torch.ones(3, 11, 2, dtype=torch.bool)
    observed[1, 8:] = False
    batch = Batch(torch.zeros(3, 11, 1), torch.zeros(3, 11, 2), observed)
    fold = folds(batch, 4, 0.0, GENERATOR)
    assert (fold[0, [0, 10]] == -1).all() and (fold[1, [0, 7]] == -1).all() and (fold[1, 8:] == -1).all()
    assert (fold[..., 0] == fold[..., 1]).all()
    assert sorted(torch.bincount(fold[0, 1:-1, 0]).tolist()) == [2, 2, 2, 3]


def test_frames_are_hidden_whole():
    frame = torch.arange(5).repeat_interleave(3)[None]
    batch = Batch(torch.zeros(1, 15, 3), torch.zeros(1, 15, 4), torch.ones(1, 15, 4, dtype=torch.bool), frame=frame)
    fold = folds(batch, 3, 0.0, GENERATOR).unflatten(1, (5, 3)).flatten(2)
    assert (fold == fold[..., :1]).all()
    assert fold[0, :, 0].sort().values.tolist() == [-1, -1, 0, 1, 2]


def test_cells_are_hidden_alone_in_their_share_of_the_samples():
    batch = Batch(torch.zeros(8, 30, 1), torch.zeros(8, 30, 5), torch.rand(8, 30, 5, generator=GENERATOR) < 0.5)
    fold = folds(batch, 3, 0.75, GENERATOR)
    alone = ((fold != fold.amax(-1, keepdim=True)) & batch.observed & (fold >= 0)).flatten(1).any(1)
    assert alone.sum() == 6
    assert ((fold >= 0) <= batch.observed).all()


def test_a_channel_with_too_few_samples_is_named():
    scores, sample = np.ones(30), np.concatenate([np.arange(20), np.arange(10)])
    found = Calibration(np.ones(2), np.ones(2), np.zeros(2), scores, sample, np.repeat([0, 1], [20, 10]))
    assert found.factor(0.9, ["HR", "lactate"], np.empty((0, 2))).tolist() == [1.0, 1.0]
    with pytest.raises(CSTError, match=r"level 0\.95 needs 19 held-out samples, but 10 of 'lactate' were there"):
        found.factor(0.95, ["HR", "lactate"], np.empty((0, 2)))
    with pytest.raises(CSTError, match="level must lie between 0 and 1, got 90"):
        found.factor(90, ["HR", "lactate"], np.empty((0, 2)))


def test_few_scores_are_kept_of_large_samples():
    t = np.tile(np.linspace(0, 1, MAX_SCORES + 50), (2, 1))
    answer = lambda context, at: (torch.zeros_like(at), torch.ones_like(at))  # noqa: E731
    found = calibrate(answer, batch_of(t, np.ones_like(t)), (0.1,), 1, 0.0, seed=0)
    assert np.bincount(found.sample).tolist() == [MAX_SCORES, MAX_SCORES]


def test_pixels_of_a_patch_share_the_numbers_of_their_image_channel():
    found = Calibration(
        np.array([1.0, 2.0]), np.array([0.5, 0.1]), np.array([0.2, 0.1]), *(np.zeros(0) for _ in range(3))
    )
    assert found.variance(np.ones((1, 6)), noise=True).tolist() == [[1.5, 2.1, 1.5, 2.1, 1.5, 2.1]]
    np.testing.assert_allclose(found.variance(np.ones((1, 2)), noise=False), [[1.3, 2.0]])
    assert math.isclose(found.variance(np.zeros((1, 2)), noise=False)[0, 1], 0.0)


def test_samples_are_the_same_with_and_without_a_batch():
    """`Samples` with missing cells: hidden cells are never ones that were not observed."""
    values = np.random.default_rng(2).normal(size=(12, 9, 2))
    values[np.random.default_rng(3).random(values.shape) < 0.4] = np.nan
    samples = Samples(np.linspace(0, 1, 9), values)
    batch = process_of(KERNEL).batch(samples, torch.float64, torch.device("cpu"))
    asked = []

    def answer(context: Batch, at: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        asked.append(int(context.observed.sum()))
        return torch.zeros(*at.shape[:2], 2), torch.ones(*at.shape[:2], 2)

    found = calibrate(answer, batch, (0.1, 0.1), 2, 1.0, seed=0)
    assert len(found.scores) == samples.observed.sum()
    assert max(asked) < samples.observed.sum()
