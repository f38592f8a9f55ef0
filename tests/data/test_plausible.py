"""Numbers that cannot be meant are refused or warned about, by the name of their column."""

import numpy as np
import pytest
import torch
from small_models import wave_model, waves

from cstformer import CSTError, CSTWarning, Samples
from cstformer.data.plausible import check_numbers
from cstformer.data.windows import from_beginning


def sines(values=None, shift: float = 0.0) -> Samples:
    t = np.linspace(0, 1, 9) + shift * np.arange(12)[:, None]
    y = np.sin(6 * t)[..., None] if values is None else values
    return Samples(t, y, coord_names=["t"], value_names=["u"])


@pytest.mark.parametrize("mark", [-9999.0, -999.0, 1e30])
def test_a_mark_of_missing_values_is_named(mark):
    y = sines().values.copy()
    y[::3, 4] = mark
    with pytest.warns(CSTWarning, match=rf"'u' is {mark:g} at 4 points, far from its other values".replace("+", r"\+")):
        check_numbers(sines(y))


def test_the_same_number_among_its_like_is_no_mark():
    y = -999 + 300 * sines().values
    y[0, :2] = -999
    check_numbers(sines(y))


@pytest.mark.parametrize(("scale", "words"), [(1e200, r"values up to 9.97e\+199"), (1e-300, "standard deviation of")])
def test_scales_whose_squares_do_not_exist_are_refused(scale, words):
    with pytest.raises(CSTError, match=f"'u' has (a )?{words}"):
        check_numbers(sines(scale * sines().values))
    check_numbers(sines(np.zeros((12, 9, 1))))  # constants have no scale


def test_samples_on_far_apart_clocks_are_warned_about():
    """12 sines of length 1, 1000 apart: each covers 1 / 11 001 of the axis."""
    with pytest.warns(CSTWarning, match=r"the median sample covers 0\.01% of the range of 't': .*--relative"):
        check_numbers(sines(shift=1000.0))
    for remedy in (from_beginning, lambda samples: samples.windows(2.0, 2.0)):
        check_numbers(remedy(sines(shift=1000.0)))
    check_numbers(sines(shift=0.5))


def test_a_network_that_answers_nan_is_not_saved(tmp_path):
    model = wave_model()
    with torch.no_grad():
        next(model.network_.parameters()).flatten()[0] = float("nan")
    with pytest.raises(CSTError, match="weights that are not finite"):
        model.save(tmp_path / "model")
    assert not (tmp_path / "model").exists()
    check_numbers(waves())
