"""Every rival in the registry, and CST itself, keeps the one contract."""

import pytest
from baseline_contract import (
    CURVE_CASES,
    CURVE_MODELS,
    FRAME_MODELS,
    MODELS,
    MOVIE_CASES,
    MOVIE_MODELS,
    CurveContract,
    FramesOnlyContract,
    MovieAnswers,
)

from cstformer.models.model import Model


@pytest.mark.parametrize("name", CURVE_MODELS)
class TestCurves(CurveContract):
    pass


@pytest.mark.parametrize("name", MOVIE_MODELS)
class TestMovies(MovieAnswers):
    pass


@pytest.mark.parametrize("name", FRAME_MODELS)
class TestFramesOnly(FramesOnlyContract):
    pass


def test_registry():
    for name, cls in MODELS.items():
        assert issubclass(cls, Model) and cls.name == name and cls.label
        assert {"default", "smoke", "paper"} <= set(cls.presets)
        for preset in cls.presets:
            cls.preset(preset)._check_settings()
    assert len({cls.label for cls in MODELS.values()}) == len(MODELS)
    assert set(CURVE_CASES) <= set(CURVE_MODELS) and set(MOVIE_CASES) <= set(MODELS)
