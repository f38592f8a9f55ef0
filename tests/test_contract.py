"""Every rival in the registry, and CST itself, keeps the one contract."""

import pytest
from baseline_contract import CASES, MODELS, ModelContract

from cstformer.baselines import BASELINES, Baseline


@pytest.mark.parametrize("name", list(MODELS))
class TestContract(ModelContract):
    pass


def test_registry():
    for name, cls in BASELINES.items():
        assert issubclass(cls, Baseline) and cls.name == name and cls.label
        assert {"default", "smoke", "paper"} <= set(cls.presets)
        for preset in cls.presets:
            cls.preset(preset)._check_settings()
    assert len({cls.label for cls in BASELINES.values()}) == len(BASELINES)
    assert set(CASES) <= set(MODELS)
