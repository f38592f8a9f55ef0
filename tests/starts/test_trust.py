"""Trust in pixels: the median of 27, log odds fitted to pairs, and the first guess."""

import numpy as np
import pytest
import scipy.ndimage
import torch

from cstformer.errors import CSTError
from cstformer.starts.pixel_view import LOUDEST
from cstformer.starts.trust import (
    FINE,
    OFFSETS,
    SCARCE,
    SPARE,
    Odds,
    Trust,
    _unlikeness,
    alike_mean,
    continued,
    distances,
    fit_trust,
    median27,
    trusted_mean,
)


def corrupted(seed=0, shape=(2, 6, 20, 20, 3)):
    """A smooth movie, and the same with N(0, 1) on half of its pixels; white noise of 0.05 is on both."""
    generator = torch.Generator().manual_seed(seed)
    place = torch.linspace(0, 3, shape[3], dtype=torch.float64)
    movie = torch.sin(place)[:, None] + 0.05 * torch.randn(shape, generator=generator, dtype=torch.float64)
    bad = torch.rand(shape[:-1], generator=generator) < 0.5
    noise = torch.randn(shape, generator=generator, dtype=torch.float64)
    return movie, movie + noise * bad[..., None], bad


def test_median_of_27():
    movies = torch.rand(2, 4, 5, 6, 3, generator=torch.Generator().manual_seed(0))
    expected = scipy.ndimage.median_filter(movies.numpy(), size=(1, 3, 3, 3, 1), mode="nearest")
    np.testing.assert_array_equal(median27(movies).numpy(), expected)
    one = torch.full((1, 1, 1, 1, 1), 7.0)
    assert median27(one).item() == 7


def test_fitted_odds_are_calibrated():
    """Of the pixels with a trust of about w a share of about w is intact; and the guess is better than the median."""
    movie, given, bad = corrupted(shape=(4, 8, 60, 60, 3))
    trust = fit_trust(movie, given)
    w = trust.judge(given)[2].sigmoid()[..., 0]
    for low, high in ((0.0, 0.1), (0.2, 0.8), (0.9, 1.0)):
        some = (w > low) & (w < high)
        assert float((~bad)[some].double().mean()) == pytest.approx(float(w[some].mean()), abs=0.08)
    error = [float((y - movie).square().mean()) for y in (trust.guess(given), median27(given), given)]
    assert error[0] < error[1] < 0.1 * error[2]


def test_sight_has_all_parts():
    _, given, _ = corrupted()
    odds = Odds(2.0, (-1.0, -1.0, 0.0, 0.0, 0.0, 0.0), (0.01, 0.01))
    trust = Trust(odds, odds, odds, fine=0.01, noise=0.25, usual=0.02)
    guess, rest, odds, unsure = trust.sight(given).split([3, 3, 1, 1], -1)
    around, error, _ = trust.judge(given)
    assert torch.equal(guess, trust.guess(given))
    torch.testing.assert_close(around + rest, given)
    torch.testing.assert_close(guess, around + (LOUDEST * odds).sigmoid() * rest)
    torch.testing.assert_close(unsure.square(), (error + 0.01) / 0.03)
    assert odds.abs().max() <= 1


def test_odds_of_a_pixel_and_its_company():
    """By hand: −f of the pixel and twice the mean of the others, which of two pixels is the f of the other."""
    far = torch.tensor([1.0, 3.0], dtype=torch.float64).reshape(1, 1, 1, 2, 1)
    found = Odds(0.5, (-1.0, 2.0, 0.0), (1.0,))(far).flatten()
    f = np.log([2.0, 4.0])
    np.testing.assert_allclose(found, 0.5 - f + 2 * f[::-1])
    assert (Odds(2.0, (-10.0, 0.0, 0.0), (1e-9,))(far) == -LOUDEST).all()


def test_blocks_are_known_by_their_company():
    """Noise in blocks: with the odds of the others nearly all pixels are told, with those of the pixel alone not."""
    movie, *_ = corrupted(shape=(2, 4, 32, 32, 3))
    generator = torch.Generator().manual_seed(1)
    bad = (torch.rand(2, 4, 4, 4, generator=generator) < 0.5).repeat_interleave(8, 2).repeat_interleave(8, 3)
    given = movie + 0.3 * torch.randn(movie.shape, generator=generator, dtype=torch.float64) * bad[..., None]
    trust = fit_trust(movie, given)
    wrong = ((trust.judge(given)[2][..., 0] > 0) == bad).double().mean()
    far = distances(given - median27(given))
    alone = Odds(trust.median.base, (*trust.median.slopes[:2], 0.0, 0.0, 0.0, 0.0), trust.median.floors)
    best = min(((alone(far)[..., 0] > at) == bad).double().mean() for at in np.linspace(-8, 8, 65))
    assert wrong < 0.01 < 0.05 < best


@pytest.mark.parametrize("second", [1.0, 0.25])
def test_mean_of_alike_pixels_by_hand(second):
    """Two frames of one pixel each: the other one by its likeness and trust, and what is known without it."""
    movies, trust = (torch.tensor(x, dtype=torch.float64).reshape(1, 2, 1, 1, 1) for x in ([1.0, 3.0], [1.0, second]))
    fallback, fine, noise = torch.full_like(movies, 2.5), 0.1, 0.5
    found, error = alike_mean(movies, trust, fallback, fine, noise)
    v = (second * 4.0 + SCARCE * 4.0) / (second + SCARCE)  # the one pair, whatever its trust
    far = (1.5**2 + second * 0.5**2) / (1 + second)  # 2.5 to the two pixels
    w = np.array([second, 1.0])  # trust of the other one
    trusted, doubted = w * (v + fine) ** -2, (1 - w) / ((v + fine) * (v + noise))
    weight, spare = trusted + doubted, SPARE * (far + fine) ** -2
    expected = (weight * np.array([3.0, 1.0]) + spare * 2.5) / (weight + spare)
    np.testing.assert_allclose(found.flatten(), expected)
    square = (weight * v + spare * far) / (weight + spare) + noise * (doubted / (weight + spare)) ** 2
    np.testing.assert_allclose(error.flatten(), square)


def plain_alike_mean(movies, trust, fallback, fine, noise):
    """`alike_mean` as its formula says, without sums in place."""
    y, w = (x.movedim(-1, 1) for x in (movies, trust))  # (B, C, T, H, W), (B, 1, T, H, W)
    one = torch.cat([y, torch.ones_like(w)], 1)
    total, error, left = torch.zeros_like(one), torch.zeros_like(w), torch.zeros_like(w)
    for offset in OFFSETS:
        sizes = list(zip(y.shape[2:], offset, strict=True))
        here, there = (
            (..., *(slice(max(0, -sign * d), max(0, n - max(0, sign * d))) for n, d in sizes)) for sign in (1, -1)
        )
        pair = w[here] * w[there]
        if not pair.numel():
            continue
        square = (y[here] - y[there]).square().mean(1, keepdim=True)
        v = _unlikeness(square, pair)
        for one_side, other in ((here, there), (there, here)):
            unsure = (1 - w[other]) / ((v + fine) * (v + noise))
            weight = w[other] * (v + fine) ** -2 + unsure
            total[one_side] += weight * one[other]
            error[one_side] += weight * v
            left[one_side] += unsure.square()
    r, movie = fallback.movedim(-1, 1), (1, 2, 3, 4)
    far = ((w * (r - y).square()).sum(movie) / (y.shape[1] * w.sum(movie)))[:, None, None, None, None]
    spare = SPARE * (far + fine) ** -2
    count = total[:, -1:] + spare
    mean, error = (total[:, :-1] + spare * r) / count, (error + spare * far) / count + noise * left / count.square()
    return mean.movedim(1, -1), error.movedim(1, -1)


@pytest.mark.parametrize("shape", [(2, 6, 9, 7, 3), (1, 3, 2, 1, 1), (1, 1, 1, 4, 2)])
def test_mean_of_alike_pixels_is_its_formula(shape):
    generator = torch.Generator().manual_seed(0)
    movies, fallback = (torch.rand(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    trust = torch.rand(*shape[:-1], 1, generator=generator, dtype=torch.float64)
    found, expected = (f(movies, trust, fallback, 0.01, 0.2) for f in (alike_mean, plain_alike_mean))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_noise_that_stays_is_averaged():
    """A block that no frame shows: many pixels with noise say more than their median, and the error is foreseen."""
    movie, *_ = corrupted(shape=(2, 8, 32, 32, 3))
    movie = movie[:, :1].expand_as(movie)
    generator = torch.Generator().manual_seed(1)
    bad = (torch.rand(2, 1, 4, 4, generator=generator) < 0.5).repeat_interleave(8, 2).repeat_interleave(8, 3)
    bad = bad.expand(movie.shape[:-1])
    given = movie + 0.5 * torch.randn(movie.shape, generator=generator, dtype=torch.float64) * bad[..., None]
    trust = fit_trust(movie, given)
    around, error, _ = trust.judge(given)
    wrong = (around - movie).square().mean(-1)
    assert wrong[bad].mean() < 0.65 * (median27(given) - movie).square().mean(-1)[bad].mean()
    assert 0.5 < error[..., 0][bad].mean() / wrong[bad].mean() < 2
    assert error[..., 0][bad].mean() > 10 * error[..., 0][~bad].mean()


def test_alike_pixels_are_found_along_the_motion():
    """White noise that moves by (1, −1) pixels a frame: only pixels along the motion say what another one is."""
    generator = torch.Generator().manual_seed(0)
    texture = torch.rand(40, 40, 3, generator=generator, dtype=torch.float64)
    movie = torch.stack([texture.roll((t, -t), (0, 1))[4:36, 4:36] for t in range(4)])[None]
    bad = torch.rand(movie.shape[:-1], generator=generator)[..., None] < 0.3
    trust, half = (~bad).double(), torch.full_like(movie, 0.5)
    found, error = alike_mean(torch.where(bad, half, movie), trust, half, FINE * float(movie.var()), 0.25)
    inside = bad.expand_as(movie)[:, 1:-1, 2:-2, 2:-2]
    wrong = (found - movie)[:, 1:-1, 2:-2, 2:-2][inside].square().mean()
    still = trusted_mean(torch.where(bad, half, movie), trust, half)
    assert wrong < 0.15 * (still - movie)[:, 1:-1, 2:-2, 2:-2][inside].square().mean()
    assert error[:, 1:-1].median() < 0.1 * movie.var()


@pytest.mark.parametrize("shape", [(1, 1, 1, 1, 1), (1, 3, 2, 5, 1), (2, 1, 4, 1, 3)])
def test_small_movies_have_a_guess(shape):
    odds = Odds(0.0, (-1.0,) * (3 if shape[-1] == 1 else 6), (0.01,) * (1 if shape[-1] == 1 else 2))
    movies = torch.rand(shape, generator=torch.Generator().manual_seed(0))
    assert torch.isfinite(Trust(odds, odds, odds, 0.01, 0.25, 0.02).sight(movies)).all()


def test_colour_tells_noise_from_an_edge():
    """An edge changes all channels alike: its pixels are believed, and noise of the same size is not."""
    movie, given, bad = corrupted()
    trust = fit_trust(movie, given)
    edge = movie.clone()
    edge[:, :, :, 10:] += 1.0
    wrong = edge + (given - movie)
    believed = trust.judge(wrong)[2][..., 0] > 0
    near = torch.zeros_like(bad)
    near[:, :, :, 8:12] = True
    wrongly = float((believed == bad)[near].double().mean())
    grey = Odds(0.0, (-1.0, 0.0, 0.0, 0.0, 0.0, 0.0), trust.median.floors)
    bright = grey(distances(wrong - median27(wrong)))[..., 0]
    best = min(float(((bright > at) == bad)[near].double().mean()) for at in np.linspace(-8, 8, 65))
    assert wrongly < 0.1 and wrongly < 0.6 * best


def test_mean_of_trusted_pixels():
    """By hand: one trusted pixel beside; two at the same distance; none, so that the fallback stays."""
    movies = torch.tensor([1.0, 5.0, 3.0], dtype=torch.float64).reshape(1, 1, 1, 3, 1)
    fallback = torch.full_like(movies, 7.0)
    near, far = np.exp(-0.5 / 0.65**2), np.exp(-2 / 0.65**2)
    trust = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64).reshape(1, 1, 1, 3, 1)
    expected = [
        (far * 3 + 0.02 * 7) / (far + 0.02),
        (near * (1 + 3) + 0.02 * 7) / (2 * near + 0.02),
        (far * 1 + 0.02 * 7) / (far + 0.02),
    ]
    np.testing.assert_allclose(trusted_mean(movies, trust, fallback).flatten(), expected)
    np.testing.assert_allclose(trusted_mean(movies, 0 * trust, fallback), fallback)
    assert distances(torch.ones(1, 1, 1, 1, 1)).shape[-1] == 1  # no colour


def test_what_is_not_partly_corrupted_is_refused():
    movie, *_ = corrupted()
    with pytest.raises(CSTError, match="changes none of the pixels"):
        fit_trust(movie, movie)
    with pytest.raises(CSTError, match="changes all of the pixels"):
        fit_trust(movie, movie + 1)


def test_missing_frames_repeat_the_last():
    movies = torch.arange(6.0).reshape(2, 3, 1, 1, 1)
    exists = torch.tensor([[True, True, True], [True, False, False]])
    assert continued(movies, exists).flatten().tolist() == [0, 1, 2, 3, 3, 3]
