"""The blind-spot network: blind to the frame itself, and a denoiser that never saw a clean frame."""

import numpy as np
import torch

from cstformer import frame_queries, frames_to_samples, samples_to_frames
from cstformer.baselines.blind_spot import BlindSpot, BlindSpotNetwork, UNet, neighbours
from cstformer.baselines.sequences import TimeSeries


def series(times, exists=None, shape=(6, 5, 1), seed=0):
    t = torch.tensor(times)
    values = torch.randn(*t.shape, *shape, generator=torch.Generator().manual_seed(seed))
    exists = torch.ones(t.shape, dtype=torch.bool) if exists is None else torch.tensor(exists)
    observed = exists[..., None, None, None].expand_as(values)
    return TimeSeries(t, values * observed, observed, exists)


def trained_network(reach=2):
    """A network whose last layer is not 0."""
    torch.manual_seed(0)
    network = BlindSpotNetwork((6, 5, 1), reach, 4, mask=True)
    torch.nn.init.normal_(network.unet.out.weight)
    return network


def test_neighbours_on_both_sides():
    frames = series([[0.0, 0.25, 0.5, 1.0], [0.0, 0.5, 0.5, 0.5]], [[True] * 4, [True, True, False, False]])
    index, there = neighbours(frames, torch.tensor([[0.25, 0.3], [0.0, 0.7]]), 2)
    assert index[0].tolist() == [[0, 0, 2, 3], [1, 0, 2, 3]]
    assert there[0].tolist() == [[True, False, True, True], [True, True, True, True]]
    assert index[1, 0, [2]].tolist() == [1] and there[1].tolist() == [
        [False, False, True, False],
        [True, True, False, False],
    ]
    assert index[1, 1, :2].tolist() == [1, 0]


def test_the_frame_itself_is_never_seen():
    network, frames = trained_network(), series([[0.0, 0.2, 0.4, 0.6, 0.8]])
    other = TimeSeries(frames.times, frames.values.clone(), frames.observed, frames.exists)
    other.values[0, 2] += 100
    before, after = (network(f, frames.times) for f in (frames, other))
    torch.testing.assert_close(after[0, 2], before[0, 2])
    changed = (after - before).abs().amax((0, 2, 3, 4)) > 1e-3
    assert changed.tolist() == [True, True, False, True, True]


def test_it_starts_from_the_line_between_the_nearest_frames():
    torch.manual_seed(0)
    network, frames = BlindSpotNetwork((6, 5, 1), 2, 4, mask=False), series([[0.0, 0.2, 0.6, 1.0]])
    y = network(frames, torch.tensor([[0.3, 0.2, 0.0, 1.0]]))[0]
    v = frames.values[0]
    expected = torch.stack([0.75 * v[1] + 0.25 * v[2], (2 * v[0] + v[2]) / 3, v[1], v[2]])
    torch.testing.assert_close(y, expected, atol=1e-4, rtol=1e-4)


def test_missing_pixels_come_from_the_other_side():
    torch.manual_seed(0)
    network, frames = BlindSpotNetwork((6, 5, 1), 1, 4, mask=True), series([[0.0, 0.5, 1.0]])
    observed = frames.observed.clone()
    observed[0, 0, 2, 3] = observed[0, :, 4, 4] = False
    holes = TimeSeries(frames.times, frames.values * observed, observed, frames.exists)
    y = network(holes, torch.tensor([[0.5]]))[0, 0, :, :, 0]
    torch.testing.assert_close(y[2, 3], frames.values[0, 2, 2, 3, 0])
    assert y[4, 4] == 0


def test_the_unet_keeps_every_size():
    torch.manual_seed(0)
    net = UNet(2, 3, 4)
    for size in ((4, 4), (7, 9), (1, 1), (46, 52)):
        assert net(torch.randn(2, 2, *size)).shape == (2, 3, *size)


def test_it_denoises_without_clean_frames():
    """Pictures that fade slowly: averages of neighbours have a fraction of the noise of a frame."""
    rng = np.random.default_rng(0)
    rows = np.arange(12)
    phase = rng.uniform(0, 2 * np.pi, (60, 1, 1, 1))
    t = np.arange(8)[None, :, None, None]
    clean = np.sin(0.1 * t + phase) * np.outer(np.sin(rows / 2), np.cos(rows / 2)) * 2
    noisy = clean + 0.7 * rng.normal(size=clean.shape)
    samples = frames_to_samples(noisy[..., None], (6, 6))
    model = BlindSpot(width=8, reach=2, steps=150, seed=0, learning_rate=5e-3).fit(samples[:50])
    at = frame_queries(samples.layout, t.ravel())
    found = samples_to_frames(model.predict(samples[50:], at), samples.layout)[..., 0]
    error = np.square(found - clean[50:]).mean()
    assert error < 0.2 * 0.7**2  # a mean of four frames would have 0.25
