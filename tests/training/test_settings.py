"""Settings: known names, allowed values, presets."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cstformer import CST, CSTError
from cstformer.network.architecture import Architecture, parameter_count
from cstformer.starts.curves import STARTS
from cstformer.starts.kinds import unfitted_kind
from cstformer.training.settings import (
    FRAMES,
    PRESETS,
    ChannelSettings,
    DisturbanceSettings,
    NetworkSettings,
    OptimiserSettings,
    ScaleSettings,
    Settings,
    SobolevSettings,
    TokenSettings,
    TrainingSettings,
    UserSettings,
    check_names,
    check_settings,
    preset,
    setting,
    setting_fields,
)

GROUPS = (
    NetworkSettings,
    TokenSettings,
    SobolevSettings,
    DisturbanceSettings,
    ChannelSettings,
    OptimiserSettings,
    TrainingSettings,
    ScaleSettings,
)


# Groups


def test_the_settings_of_cst_are_the_groups_one_after_the_other():
    names = [name for group in GROUPS for name in setting_fields(group)]
    assert len(names) == len(set(names))  # no setting is in two groups
    assert list(setting_fields(Settings)) == names
    assert [name for name in setting_fields(CST) if name != "seed"] == [name for name in names if name != "seed"]
    assert {name: f.default for name, f in setting_fields(CST).items()} == vars(UserSettings())
    for name, default in vars(UserSettings()).items():  # what is not a number yet becomes one
        assert default == getattr(Settings(), name) or (default == "auto" and name in FRAMES)


def test_a_model_that_joins_groups_has_their_settings_and_its_own():
    @dataclasses.dataclass(kw_only=True, eq=False, repr=False)
    class Small(TrainingSettings, DisturbanceSettings):
        hidden: int = setting(8, "units", low=1)

    known = setting_fields(Small)
    assert list(known) == [*setting_fields(DisturbanceSettings), *setting_fields(TrainingSettings), "hidden"]
    check_settings({"hidden": 3, "steps": 5}, Small)
    with pytest.raises(CSTError, match="hidden=0: must be at least 1"):
        check_settings({"hidden": 0}, Small)
    with pytest.raises(CSTError, match=r"^unknown setting of Small 'hiden'; did you mean 'hidden'\?"):
        check_names(["hiden"], Small, " of Small")
    with pytest.raises(CSTError, match="unknown setting 'dummies'"):  # of another group
        check_settings({"dummies": 3}, Small)


# Presets


@pytest.mark.parametrize("name", ["default", "frames", "paper", "smoke"])
def test_every_preset_is_valid_and_constructs(name):
    check_settings(preset(name))
    model = CST.preset(name)
    check_settings(model.get_params())
    assert {k: v for k, v in model.get_params().items() if k in PRESETS[name]} == PRESETS[name]
    untouched = {k: f.default for k, f in setting_fields().items() if k not in PRESETS[name]}
    assert {k: model.get_params()[k] for k in untouched} == untouched


def test_presets_hold_known_settings_only_and_are_handed_out_as_copies():
    assert set(PRESETS) >= {"default", "paper", "smoke"}
    for changes in PRESETS.values():
        assert set(changes) <= set(setting_fields())
    preset("smoke")["width"] = 999
    assert PRESETS["smoke"]["width"] != 999


def test_changes_win_over_the_preset():
    assert CST.preset("smoke", width=24).width == 24


def test_unknown_preset_suggests_the_nearest():
    with pytest.raises(CSTError, match=r"unknown preset 'papr'; did you mean 'paper'\?"):
        CST.preset("papr")


def test_paper_preset_has_the_published_size():
    model = CST.preset("paper")
    model.kind_ = unfitted_kind(1, 2)
    network = model._network(1, 2)
    assert parameter_count(network) == pytest.approx(818_016, rel=0.02)


def test_every_field_of_the_architecture_is_a_setting_except_the_data_sizes():
    assert {f.name for f in dataclasses.fields(Architecture)} - set(setting_fields()) == {
        "d",
        "c",
        "covariates",
        "calendar",
        "time_axis",
        "iterations",
        "near",  # `nearness`, and
        "split_context",
        "bounded",
        "view",  # `start`, once it is known whether the data are frames
    }


def test_the_starts_are_those_of_the_code():
    assert setting_fields()["start"].metadata["choices"] == (
        "auto",
        *STARTS,
        "modes",
        "median",
        "motion",
    )  # the last two of frames alone


# Values


def test_every_setting_is_explained():
    for field in setting_fields().values():
        assert len(field.metadata["help"]) > 5, field.name
        check_settings({field.name: field.default})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("width", "64", "width='64': expected int or auto, not a number in quotes"),
        ("width", 64.0, "width=64.0: expected int"),
        ("width", True, "width=True: expected int"),
        ("width", None, "width=None: expected int"),
        ("layers", 0, "layers=0: must be at least 1"),
        ("p", math.nan, "p=nan: must be at least 1"),
        ("mu", -1e-9, "mu=-1e-09: must be at least 0"),
        ("learning_rate", math.inf, "learning_rate=inf: must be finite"),
        ("max_minutes", -1, "max_minutes=-1: must be at least 0"),
        ("max_minutes", "5", "max_minutes='5': expected float or None, not text"),
        ("hide", 0.96, "hide=0.96: must be at most 0.95"),
        ("root", 1, "root=1: expected bool"),
        ("pattern", 3, "pattern=3: expected str"),
        (
            "pattern",
            "contxt",
            "unknown value of pattern 'contxt'; did you mean 'context'? Valid: context, joint",
        ),
        ("mu", "atuo", "unknown value of mu 'atuo'; did you mean 'auto'? Valid: auto, search"),
        ("start", "quintic", "unknown value of start 'quintic'"),
        ("channel_weights", 2.0, "channel_weights=2.0: expected a list of numbers or None"),
        ("channel_weights", [1, "2"], "channel_weights=[1, '2']: expected a list of numbers or None"),
        ("channel_weights", [1, True], "channel_weights=[1, True]: expected a list of numbers or None"),
        ("channel_weights", [1, -1], "channel_weights=[1, -1]: each must be finite and at least 0"),
        ("channel_weights", [1, math.inf], "channel_weights=[1, inf]: each must be finite and at least 0"),
        ("channel_weights", [0, 0], "channel_weights=[0, 0]: one at least must be positive"),
        ("channel_weights", [], "channel_weights=[]: one at least must be positive"),
    ],
)
def test_a_bad_value_is_refused_in_one_line(name, value, message):
    with pytest.raises(CSTError) as caught:
        check_settings({name: value})
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("p", math.inf),
        ("p", 1),
        ("p", 1.5),
        ("mu", 0),
        ("mu", "search"),
        ("max_minutes", None),
        ("max_minutes", 0.1),
        ("width", np.int64(8)),
        ("learning_rate", np.float32(1e-3)),
        ("device", "cuda:1"),
        ("hide", 0.95),
        ("channel_weights", [1, 2.5]),
        ("channel_weights", (0, np.float32(1))),
    ],
)
def test_good_values_pass(name, value):
    check_settings({name: value})


@given(
    st.sampled_from(sorted(setting_fields())),
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
)
def test_any_value_passes_or_gets_one_line(name, value):
    try:
        check_settings({name: value, **({"heads": 1} if name == "width" else {})})
    except CSTError as error:
        assert len(str(error).splitlines()) == 1
        assert name in str(error)


def test_unknown_setting_suggests_the_nearest():
    with pytest.raises(CSTError, match=r"^unknown setting 'learning_rat'; did you mean 'learning_rate'\? Valid: atten"):
        check_settings({"learning_rat": 1.0})


def test_width_must_be_a_multiple_of_heads():
    with pytest.raises(CSTError, match=r"^width=30 is not a multiple of heads=4; choose e.g. width=32$"):
        check_settings({"width": 30})
    check_settings({"width": 30, "heads": 5})


def test_settings_store_and_do_nothing():
    odd = object()
    assert Settings(width=odd).width is odd
