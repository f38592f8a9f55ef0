"""Every rival in the registry, and CST itself, keeps the one contract."""

import pytest
from baseline_contract import (
    BOTH_MODELS,
    CURVE_CASES,
    CURVE_MODELS,
    FRAME_MODELS,
    MOVIE_CASES,
    CurveContract,
    FramesOnlyContract,
    MovieAnswers,
)

from cstformer.baselines import BASELINES, Baseline


@pytest.mark.parametrize("name", CURVE_MODELS)
class TestCurves(CurveContract):
    pass


@pytest.mark.parametrize("name", BOTH_MODELS)
class TestMovies(MovieAnswers):
    pass


@pytest.mark.parametrize("name", FRAME_MODELS)
class TestFramesOnly(FramesOnlyContract):
    pass


def test_registry():
    for name, cls in BASELINES.items():
        assert issubclass(cls, Baseline) and cls.name == name and cls.label
        assert {"default", "smoke", "paper"} <= set(cls.presets)
        for preset in cls.presets:
            cls.preset(preset)._check_settings()
    assert len({cls.label for cls in BASELINES.values()}) == len(BASELINES)
    assert set(CURVE_CASES) <= set(CURVE_MODELS) and set(MOVIE_CASES) <= {*BOTH_MODELS, *FRAME_MODELS}
