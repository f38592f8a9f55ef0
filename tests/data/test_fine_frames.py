"""Frames from patches at any place: exact for fields that patches show exactly, no seams where patches disagree."""

import numpy as np
import pytest
import torch

from cstformer.data.fine_frames import fine_frames
from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frame_queries, frames_to_samples, stitch
from cstformer.datasets.vorticity import solve, velocity
from cstformer.errors import CSTError
from cstformer.experiments.navier_stokes.errors import seams
from cstformer.models.cst import CST


def asker(layout, field):
    """Answers with the values of field(t, row, col) → (..., C) at the pixels of each patch."""

    def ask(at):
        row, col = (np.arange(p) - (p - 1) / 2 for p in layout.patch)
        r, c = at[:, 1, None, None] + row[:, None], at[:, 2, None, None] + col[None, :]
        t = np.broadcast_to(at[:, 0, None, None], np.broadcast_shapes(r.shape, c.shape))
        return field(t, *np.broadcast_arrays(r, c)).reshape(1, len(at), -1)

    return ask


@pytest.mark.parametrize("overlap", [1, 2, 3])
@pytest.mark.parametrize(
    "frame, patch, periodic", [((8, 12), (4, 3), True), ((9, 7), (4, 3), False), ((5, 6), (8, 4), False)]
)
def test_a_smooth_field_is_given_back_on_any_grid(frame, patch, periodic, overlap):
    """Vector fields on periodic and other frames that patches need not divide, at zoom 1 and 3."""
    layout = PatchLayout(frame, patch, channels=2, periodic=periodic)

    def field(t, r, c):
        return np.stack([np.cos(2 * np.pi * (r / frame[0] - t)), np.sin(2 * np.pi * (2 * c / frame[1] + t))], -1)

    for zoom in (1, 3):
        y = fine_frames(asker(layout, field), layout, [0.0, 0.3], zoom=zoom, overlap=overlap)
        size = [zoom * n if periodic else zoom * (n - 1) + 1 for n in frame]
        r, c = np.meshgrid(*(np.arange(n) / zoom for n in size), indexing="ij")
        expected = np.stack([field(np.full(r.shape, t), r, c) for t in (0.0, 0.3)])
        np.testing.assert_allclose(y[0], expected, atol=1e-12)


def test_side_by_side_is_stitching():
    layout = PatchLayout((6, 8), (3, 4), channels=2, periodic=True)
    at = frame_queries(layout, [0.5, 1.0])
    values = np.random.default_rng(0).normal(size=(3, len(at), layout.c))
    frames = fine_frames(
        lambda asked: values[:, [np.flatnonzero((at == x).all(1))[0] for x in asked]], layout, [0.5, 1.0], overlap=1
    )
    np.testing.assert_array_equal(frames, stitch(values, layout))


def test_patches_that_disagree_are_blended():
    """Each patch adds a constant of its own to a smooth field; side by side that is a step at every border."""
    layout = PatchLayout((16, 16), (4, 4), periodic=True)

    def ask(at):
        smooth = asker(layout, lambda t, r, c: np.sin(2 * np.pi * (r + c) / 16)[..., None])(at)
        return smooth + 0.3 * np.sin(12.9898 * at[:, 1:2] + 78.233 * at[:, 2:])

    apart, together = (fine_frames(ask, layout, [0.0], zoom=2, overlap=k)[0, :, ..., 0] for k in (1, 4))
    assert seams(apart, 8)[0] > 3 * seams(together, 8)[0] and seams(together, 8)[0] < 1.3


def test_what_is_refused():
    layout = PatchLayout((8, 8), (4, 2))
    for wrong in ({"zoom": 0}, {"overlap": 3}, {"zoom": 1.5}):
        name, value = next(iter(wrong.items()))
        with pytest.raises(CSTError, match=f"{name} must be a whole number from 1 to .* got {value}"):
            fine_frames(lambda at: at, layout, [0.0], **wrong)


def test_velocities_of_a_rectangle_through_the_same_path():
    """(u, v) on 12 × 18 points cut out of a periodic flow: CST reads, answers and is asked between its pixels."""
    x = torch.arange(24, dtype=torch.float64) / 24
    phase = torch.arange(10, dtype=torch.float64)[:, None, None] * 0.7
    w = torch.sin(2 * np.pi * x[:, None] + phase) * torch.cos(2 * np.pi * x) + 0.5 * torch.cos(
        4 * np.pi * x + 2 * phase
    )
    times = np.array([0.5, 1.0, 2.0, 2.5, 3.5, 4.0])
    flow = solve(w, times, viscosity=1e-3, step=0.1)
    movies = torch.stack(velocity(flow), -1)[:, :, 3:15, 2:20].numpy()  # (10, 6, 12, 18, 2)
    samples = frames_to_samples(movies, (4, 6), times=times)
    assert samples.layout.channels == 2 and not samples.layout.periodic
    kept = samples.subset_points(samples.coords[..., 0] != 2.0)
    model = CST.preset("smoke", steps=20, order=1, start="cubic", noise=0.0).fit(kept)
    y = fine_frames(lambda at: model.predict(kept, at), samples.layout, [2.0], zoom=2)
    assert y.shape == (10, 1, 23, 35, 2)
    error = np.square(y[:, 0, ::2, ::2] - movies[:, 2]).mean()
    assert error < 0.02 * movies[:, 2].var()
    # Between the pixels it stays near the line through its neighbours: no seams, and no patch out of place.
    middle = (y[:, 0, ::2, :-2:2] + y[:, 0, ::2, 2::2]) / 2
    assert np.square(y[:, 0, ::2, 1::2] - middle).mean() < 0.02 * movies[:, 2].var()
