"""Channels, clocks and stimulus tables, by hand-made examples."""

import dask.array as da
import numpy as np
import pytest

from cstformer.datasets.calcium.recording import Channel, Recording, Stimuli, contrast_label, split_channels
from cstformer.errors import CSTError, CSTWarning


def numbered(count):
    """Frames whose only pixel says which frame it is."""
    return da.from_array(np.arange(count, dtype=float).reshape(-1, 1, 1), chunks=(3, 1, 1))


def pixels(channel):
    return channel.frames.compute().ravel().tolist()


def test_interleaved_frames_come_apart():
    parts = split_channels(numbered(6), np.arange(6) / 20, (575, 395))
    assert pixels(parts[575]) == [0, 2, 4]
    assert pixels(parts[395]) == [1, 3, 5]
    np.testing.assert_allclose(parts[395].times - parts[575].times, 0.05)
    assert parts[575].step == pytest.approx(0.1)
    assert parts[575].dropped == 0


def test_a_dropped_frame_does_not_swap_the_channels():
    slots = np.delete(np.arange(20), [3, 7, 8])
    parts = split_channels(numbered(17), slots / 20, (575, 395))
    assert pixels(parts[575]) == np.flatnonzero(slots % 2 == 0).tolist()
    assert pixels(parts[395]) == np.flatnonzero(slots % 2 == 1).tolist()
    assert (parts[575].dropped, parts[395].dropped) == (1, 2)


def test_a_slow_clock_does_not_add_up_to_a_dropped_frame():
    drifting = np.cumsum(np.full(4001, 0.05 * (1 + 1e-3)) + 1e-6 * np.sin(np.arange(4001)))
    parts = split_channels(da.zeros((4001, 1, 1)), drifting, (575, 395))
    assert len(parts[575].times) == 2001
    assert len(parts[395].times) == 2000


def test_the_wavelength_of_every_frame_wins_over_the_clock():
    labels = [575, 575, 395, 575, 395, 395]
    parts = split_channels(numbered(6), np.arange(6) / 20, labels)
    assert pixels(parts[395]) == [2, 4, 5]


def test_ambiguous_gaps_are_told():
    with pytest.warns(CSTWarning, match="dropped frames cannot be counted"):
        split_channels(numbered(5), [0.0, 1.0, 2.0, 3.5, 4.5], (575, 395))


def test_labels_have_the_variance_of_the_paper():
    """Six contrasts equally often, 2 s on and 5 s off: the paper's errors imply 0.274 to 0.286."""
    start = 5 + 7.0 * np.arange(600)
    stimuli = Stimuli(start, start + 2, np.tile([2, 5, 10, 20, 50, 100], 100))
    labels = contrast_label(stimuli.contrast_at(np.arange(0, 4200, 0.1)))
    assert labels.min() == -1
    assert labels.max() == 1
    assert 0.274 < labels.var() < 0.287


def test_stimuli_are_sorted_and_end_before_the_next():
    table = Stimuli([7.0, 0.0], [9.0, 2.0], [50.0, 20.0])
    assert table.start.tolist() == [0.0, 7.0]
    assert table.contrast_at([-1.0, 0.0, 1.99, 2.0, 8.0, 9.0]).tolist() == [0, 20, 20, 0, 50, 0]
    assert Stimuli([], [], []).contrast_at([1.0]).tolist() == [0.0]


CHANNEL = Channel(da.zeros((3, 2, 2)), np.arange(3.0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Stimuli([0.0], [0.0], [5.0]), "must end after they start"),
        (lambda: Stimuli([0.0, 1.0], [2.0, 3.0], [5.0, 5.0]), "must not overlap"),
        (lambda: Stimuli([0.0], [1.0], [101.0]), "per cent, 0 to 100"),
        (lambda: Stimuli([0.0], [1.0, 2.0], [1.0]), "one number per stimulus each"),
        (lambda: Channel(da.zeros((3, 2, 2)), np.arange(2.0)), "with T times"),
        (lambda: Channel(da.zeros((2, 2, 2)), np.array([1.0, 1.0])), "increase from frame to frame"),
        (lambda: Recording({}), "no channel"),
        (lambda: Recording({575: CHANNEL}, mask=np.ones((2, 3), bool)), r"mask must be bool of shape \(2, 2\)"),
        (lambda: Recording({575: CHANNEL}, dark=np.ones((2, 3))), "dark must be one number or a frame"),
        (lambda: Recording({575: CHANNEL}, pixel_mm=0.0), "pixel_mm=0"),
        (lambda: Recording({575: CHANNEL}).channel(570), "did you mean '575'"),
        (lambda: split_channels(numbered(4), np.arange(4), (575, 575)), "each lamp once"),
        (lambda: split_channels(numbered(4), np.arange(4), np.full(9, 575)), "one per frame or the order"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(CSTError, match=message):
        call()
