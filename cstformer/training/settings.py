"""Every setting: its default, its meaning and its allowed values, in groups that models join.

A model is a dataclass that inherits the groups it uses and adds settings of its own. This module must stay light: `cst
fit --help` imports it.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from cstformer.errors import CSTError, unknown


def setting(
    default: Any,
    text: str,
    choices: tuple[str, ...] = (),
    low: float | None = None,
    high: float | None = None,
):
    """A dataclass field with its meaning and its allowed values."""
    return field(default=default, metadata={"help": text, "choices": choices, "low": low, "high": high})


@dataclass(kw_only=True, eq=False, repr=False)
class NetworkSettings:
    """A transformer on (coordinate, value) tokens."""

    width: int = setting(64, "features of a token; a multiple of heads", low=1, high=2**14)
    layers: int = setting(4, "transformer blocks", low=1, high=2**10)
    heads: int = setting(4, "attention heads", low=1, high=2**10)
    feedforward: int = setting(128, "width of the feed-forward step", low=1, high=2**17)
    pattern: str = setting("context", "who reads whom: context (ours) or joint (the paper's)", ("context", "joint"))
    attention_kind: str = setting("exact", "exact, or nystrom: linear in the number of tokens", ("exact", "nystrom"))
    landmarks: int = setting(32, "landmarks of Nyström attention", low=1, high=2**15)
    projections: int = setting(1, "linear maps after attention; the published Nyström code has 2", low=1, high=2)
    norm: str = setting("pre", "LayerNorm before (pre) or after (post, the paper's) each step", ("pre", "post"))
    encoding: str = setting("fourier", "coordinate encoding; linear is the paper's", ("fourier", "linear"))
    features: int = setting(32, "Fourier features", low=1, high=2**14)
    frequency: float = setting(1.0, "sd of the Fourier frequencies, in cycles over the domain", low=0)
    readout: str = setting("skip", "skip: A·start + decoder; plain: the paper's decoder alone", ("skip", "plain"))
    dropout: float = setting(0.0, "dropout of token features in training", low=0, high=0.99)


@dataclass(kw_only=True, eq=False, repr=False)
class TokenSettings:
    """What the tokens of CST hold before they read each other."""

    nearness: str = setting(
        "auto",
        "add a learned Gaussian of the distance to every attention logit; auto: for frames, and for points by short "
        "trials",
        ("auto", "always", "never"),
    )
    start: str = setting(
        "smooth",
        "the first value of a query, which the network improves; frames also have modes (a few pictures, each with a "
        "Gaussian process in time), motion (moves what moves from one frame to the next) and median (robust to "
        "corrupted pixels, for fit(frames, given=corruption)); auto: for frames smooth or modes, by how well they "
        "predict hidden frames",
        ("auto", "linear", "hermite", "cubic", "smooth", "modes", "median", "motion"),
    )
    noise_on: str = setting(
        "context",
        "what gets noise in training: context, the values from which queries start; tokens, the paper's: queries start "
        "from clean values, then every token, dummy points included, gets noise in units of the 0.98 quantile of the "
        "absolute values",
        ("context", "tokens"),
    )
    coord_noise: float = setting(
        0.0, "sd of the noise added to context coordinates in training, in units of the domain", low=0
    )


@dataclass(kw_only=True, eq=False, repr=False)
class SobolevSettings:
    """The Sobolev loss and its dummy points."""

    order: int = setting(2, "highest derivative in the Sobolev term (k in the paper)", low=0, high=12)
    p: float = setting(2.0, "exponent of the loss, at least 1; inf for the maximum norm", low=1)
    mu: float | str = setting(
        "auto",
        "weight of the Sobolev term; auto: from noise and roughness of the data; search: by short trials over "
        "decades, 0 included",
        ("auto", "search"),
        low=0,
    )
    root: bool = setting(False, "take the final 1/p root of the loss")
    visible: float = setting(
        1.0, "weight of a visible cell in the loss, where that of a hidden one is 1", low=0, high=1
    )
    sobolev_every: int = setting(4, "compute the Sobolev term in one step of N, weighted by N", low=1)
    dummies: int = setting(10, "dummy points per sample and step", low=0, high=2**15)
    dummy_law: str = setting("stratified", "where dummy points fall", ("uniform", "stratified", "regular"))


@dataclass(kw_only=True, eq=False, repr=False)
class DisturbanceSettings:
    """What is hidden from a model while it trains, and the noise on the rest."""

    hide: float = setting(
        0.5, "largest fraction of a sample's points hidden per step; 0 is the paper's", low=0, high=0.95
    )
    hide_cells: float | str = setting(
        "auto",
        "share of the samples that hide single cells (one channel of a point) instead of whole points; "
        "auto: as the gaps of the data are",
        ("auto",),
        low=0,
        high=1,
    )
    noise: float | str = setting(
        "auto",
        "sd of the noise added to context values in training, in units of the values' sd; auto: the data's own noise, "
        "or a quarter of it where a short trial of points says so",
        ("auto",),
        low=0,
    )


@dataclass(kw_only=True, eq=False, repr=False)
class ChannelSettings:
    """Units and weights of the channels, for CST and every trained rival."""

    scaling: str = setting(
        "auto",
        "how values are standardised: linear, by mean and sd; robust, by median and asinh; auto: robust for channels "
        "of points with heavy tails",
        ("auto", "linear", "robust"),
    )
    channel_weights: tuple[float, ...] | None = setting(
        None, "weight of each channel in the loss, e.g. 1,2,1; none: all count the same", low=0
    )


@dataclass(kw_only=True, eq=False, repr=False)
class OptimiserSettings:
    """The optimiser, for networks of transformer blocks; others always take AdamW."""

    optimiser: str = setting(
        "auto",
        "muon: orthogonalised steps for the matrices of the blocks; auto: muon for frames, adamw for points",
        ("auto", "adamw", "muon"),
    )


@dataclass(kw_only=True, eq=False, repr=False)
class TrainingSettings:
    """The training loop, shared by CST and every trained rival."""

    steps: int = setting(1200, "training steps", low=1)
    batch: int = setting(32, "samples per step", low=1)
    learning_rate: float = setting(2e-3, "peak learning rate", low=0)
    warmup: float = setting(
        0.05, "fraction of the steps in which the rate rises; a cosine decay follows", low=0, high=1
    )
    weight_decay: float = setting(1e-2, "weight decay, multiplied by the learning rate", low=0)
    clip: float = setting(1.0, "largest gradient norm; 0: no limit", low=0)
    validation: float = setting(0.1, "fraction of the samples held out for choosing the best weights", low=0, high=0.9)
    patience: float = setting(0.5, "stop after this fraction of the steps without improvement", low=0)
    max_minutes: float | None = setting(None, "cap on training time; the best weights so far are kept", low=0)
    seed: int = setting(0, "seed of everything random", low=0, high=2**32 - 1)
    precision: str = setting(
        "float32",
        "number format; bfloat16: float32 with matrix products in bfloat16, where the hardware is faster so",
        ("float32", "float64", "bfloat16"),
    )
    threads: int | str = setting(
        "auto",
        "CPU threads; auto: one for small networks, OMP_NUM_THREADS or every core for large ones",
        ("auto",),
        low=1,
        high=2**9,
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps, …")


@dataclass(kw_only=True, eq=False, repr=False)
class ScaleSettings:
    """Compiled kernels, several processes, several machines."""

    compile: str = setting(
        "auto",
        "torch.compile for the Taylor kernels; auto: where a C++ compiler exists and the run is long enough",
        ("auto", "always", "never"),
    )
    devices: int = setting(
        1, "processes per machine that share a batch; each takes one GPU, or a part of the CPU cores", low=1
    )
    nodes: int = setting(1, "number of machines; torchrun or SLURM starts the processes", low=1)
    strategy: str = setting("ddp", "whether each process keeps all weights (ddp) or a shard (fsdp)", ("ddp", "fsdp"))


@dataclass(kw_only=True, eq=False, repr=False)
class Settings(
    ScaleSettings,
    TrainingSettings,
    OptimiserSettings,
    ChannelSettings,
    DisturbanceSettings,
    SobolevSettings,
    TokenSettings,
    NetworkSettings,
):
    """All settings of a training of `CST`, flat, with the numbers for points.

    Python collects the fields of the last base first, hence the order of the bases.
    """


def automatic(name: str, text: str) -> Any:
    """The setting of this name, with the default ``auto``, which ``text`` explains."""
    base = {f.name: f for f in dataclasses.fields(Settings)}[name]
    meta = dict(base.metadata) | {"help": f"{base.metadata['help']}; auto: {text}", "choices": ("auto",)}
    return field(default="auto", metadata=meta)


def _by_kind(name: str) -> Any:
    """A setting whose ``auto`` depends on the kind of data alone."""
    points = f"{Settings.__dataclass_fields__[name].default:g} for points"
    if name in SERIES:
        points += f" ({SERIES[name]:g} with several channels)"
    return automatic(name, f"{points}, {FRAMES[name]:g} for frames")


# Channels that explain each other need a wider network. PhysioNet 2012, ten minutes each, mean squared error of the
# validation patients: 3.38e-3 with 64 features (1040 steps), 3.34e-3 with 128 (720 steps).
SERIES: dict[str, Any] = {"width": 128, "feedforward": 256}
# Fields and movies of a few hundred samples and more, for minutes on one core: small batches, one frame hidden.
FRAMES: dict[str, Any] = {
    "width": 96,
    "feedforward": 192,
    "frequency": 1.5,
    "order": 1,
    "sobolev_every": 16,
    "hide": 0.3,
    "visible": 1.0,
    "batch": 4,
    "steps": 3000,
    "learning_rate": 2.5e-3,
    "validation": 0.04,
}


@dataclass(kw_only=True, eq=False, repr=False)
class UserSettings(Settings):
    """All settings of `CST` as users give them; each field's meaning is in its metadata and in ``cst fit --help``.

    What is ``auto`` becomes a number when the data are known: `resolve`.
    """

    width: int | str = _by_kind("width")  # type: ignore[assignment]
    feedforward: int | str = _by_kind("feedforward")  # type: ignore[assignment]
    frequency: float | str = automatic(  # type: ignore[assignment]
        "frequency", "1.5 for frames, and for points by short trials"
    )
    order: int | str = _by_kind("order")  # type: ignore[assignment]
    sobolev_every: int | str = _by_kind("sobolev_every")  # type: ignore[assignment]
    hide: float | str = automatic("hide", "0.3 for frames, and for points by short trials")  # type: ignore[assignment]
    visible: float | str = automatic(  # type: ignore[assignment]
        "visible", "1, or a tenth where a short trial of rough points says so"
    )
    batch: int | str = _by_kind("batch")  # type: ignore[assignment]
    steps: int | str = _by_kind("steps")  # type: ignore[assignment]
    learning_rate: float | str = _by_kind("learning_rate")  # type: ignore[assignment]
    validation: float | str = _by_kind("validation")  # type: ignore[assignment]


AUTOMATIC = tuple(FRAMES)
"""Settings that `resolve` fills in."""


def resolve(settings: dict[str, Any], preset_of_kind: str) -> Settings:
    """Put numbers in the place of ``auto``, as the preset of a kind of data has them.

    >>> resolve({"width": "auto", "steps": 50}, "frames").width
    96
    """
    values = PRESETS[preset_of_kind]
    known = {f.name: f.default for f in dataclasses.fields(Settings)}
    given = {k: values.get(k, known[k]) if k in AUTOMATIC and v == "auto" else v for k, v in settings.items()}
    return Settings(**given)


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "smoke": {"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "steps": 30, "batch": 8},
    "series": SERIES,  # what points with several channels get without being asked
    "frames": FRAMES,  # what movies get without being asked
    # The published architecture, loss and noise, with the notebook's number of dummy points. Its dropout of 0.8, which
    # the paper does not state, is left out: it keeps a network of 32 features from fitting even the observed points.
    "paper": {
        "width": 32,
        "feedforward": 3072,
        "pattern": "joint",
        "norm": "post",
        "encoding": "linear",
        "readout": "plain",
        "nearness": "never",
        "start": "linear",
        "order": 3,
        "p": 3.0,
        "mu": "search",
        "sobolev_every": 16,
        "visible": 1.0,
        "dummies": 500,
        "dummy_law": "uniform",
        "hide": 0.0,
        "noise": 0.1,
        "noise_on": "tokens",
        "batch": 10,
        "optimiser": "adamw",
        "learning_rate": 1e-3,
        "weight_decay": 1e-7,
    },
}


def setting_fields(group: type = UserSettings) -> dict[str, dataclasses.Field]:
    """Settings of a group or of a model by name; those of CST by default."""
    return {f.name: f for f in dataclasses.fields(group) if f.metadata}


def preset(name: str) -> dict[str, Any]:
    """Look up the settings of a preset, as changes to the defaults."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return dict(PRESETS[name])


def check_names(names: Iterable[str], group: type = UserSettings, owner: str = "") -> None:
    """Refuse settings that a group or a model does not have."""
    known = setting_fields(group)
    for name in names:
        if name not in known:
            raise unknown(f"setting{owner}", name, known)


def check_settings(values: dict[str, Any], group: type = UserSettings, owner: str = "") -> None:
    """Refuse unknown names and values outside what a setting allows.

    >>> check_settings({"patern": "joint"})
    Traceback (most recent call last):
    cstformer.errors.UnknownName: unknown setting 'patern'; did you mean 'pattern'? Valid: attention_kind, ...
    """
    check_names(values, group, owner)
    known = setting_fields(group)
    for name, value in values.items():
        check_one(known[name], value)
    width, heads = (values.get(n, known[n].default if n in known else 1) for n in ("width", "heads"))
    for size in (FRAMES["width"], SERIES["width"], Settings.width) if width == "auto" else (width,):
        if size % heads:
            raise CSTError(
                f"width={size} is not a multiple of heads={heads}; choose e.g. width={heads * (size // heads + 1)}"
            )


def _check_list(setting: dataclasses.Field, value: Any, wanted: str) -> None:
    """Refuse what is no list of finite numbers of at least ``low``, and a list of zeros."""
    if not isinstance(value, list | tuple) or not all(
        isinstance(x, numbers.Real) and not isinstance(x, bool) for x in value
    ):
        raise CSTError(f"{setting.name}={value!r}: expected {wanted}")
    if not all(math.isfinite(x) and x >= setting.metadata["low"] for x in value):
        raise CSTError(f"{setting.name}={value!r}: each must be finite and at least {setting.metadata['low']}")
    if not sum(value) > 0:
        raise CSTError(f"{setting.name}={value!r}: one at least must be positive")


def check_one(setting: dataclasses.Field, value: Any) -> None:
    """Refuse a value that this setting does not allow."""
    kind, meta = str(setting.type), setting.metadata
    choices = meta["choices"]
    wanted = kind.replace(" | ", " or ").replace("tuple[float, ...]", "a list of numbers")
    if choices == ("auto",):
        wanted = wanted.replace("str", "auto")
    if value is None and "None" in kind:
        return
    if isinstance(value, bool) or kind == "bool":
        if not (isinstance(value, bool) and kind == "bool"):
            raise CSTError(f"{setting.name}={value!r}: expected {wanted}")
        return
    if isinstance(value, str):
        if "str" not in kind:
            raise CSTError(f"{setting.name}={value!r}: expected {wanted}, not text")
        if value.replace(".", "").isdigit() and kind != "str":
            raise CSTError(f"{setting.name}={value!r}: expected {wanted}, not a number in quotes")
        if choices and value not in choices:
            raise unknown(f"value of {setting.name}", value, choices)
        return
    if "tuple" in kind:
        _check_list(setting, value, wanted)
        return
    number = isinstance(value, numbers.Integral) or (isinstance(value, numbers.Real) and "float" in kind)
    if not number or kind == "str":
        raise CSTError(f"{setting.name}={value!r}: expected {wanted}")
    if math.isinf(value) and setting.name != "p":
        raise CSTError(f"{setting.name}={value}: must be finite")
    if math.isnan(value) or (meta["low"] is not None and value < meta["low"]):
        raise CSTError(f"{setting.name}={value}: must be at least {meta['low']}")
    if meta["high"] is not None and value > meta["high"]:
        raise CSTError(f"{setting.name}={value}: must be at most {meta['high']}")
