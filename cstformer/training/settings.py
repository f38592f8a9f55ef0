"""Every setting of CST, its default, its meaning and its allowed values."""

from __future__ import annotations

import dataclasses
import math
import numbers
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
class Settings:
    """Flat settings of `CST`; each field's meaning is in its metadata and in ``cst fit --help``."""

    # The network
    width: int = setting(64, "features of a token; a multiple of heads", low=1)
    layers: int = setting(4, "transformer blocks", low=1)
    heads: int = setting(4, "attention heads", low=1)
    feedforward: int = setting(128, "width of the feed-forward step", low=1)
    pattern: str = setting("context", "who reads whom: context (ours) or joint (the paper's)", ("context", "joint"))
    attention_kind: str = setting("exact", "exact, or nystrom: linear in the number of tokens", ("exact", "nystrom"))
    landmarks: int = setting(32, "landmarks of Nyström attention", low=1)
    projections: int = setting(1, "linear maps after attention; the published Nyström class has 2", low=1, high=2)
    norm: str = setting("pre", "LayerNorm before (pre) or after (post, the paper's) each step", ("pre", "post"))
    encoding: str = setting("fourier", "coordinate encoding; linear is the paper's", ("fourier", "linear"))
    features: int = setting(32, "Fourier features", low=1)
    frequency: float = setting(1.0, "sd of the Fourier frequencies, in cycles over the domain", low=0)
    readout: str = setting("skip", "skip: A·start + decoder; plain: the paper's decoder alone", ("skip", "plain"))
    nearness: str = setting(
        "auto",
        "whether heads look near places: a learned Gaussian of the distance in every logit; auto: for frames",
        ("auto", "always", "never"),
    )
    dropout: float = setting(0.0, "dropout on token features while training", low=0, high=0.99)
    start: str = setting(
        "smooth",
        "the value first put on a query; for frames also motion: things on their way from one to the next; "
        "and median: of the pixels around, for fit(frames, given=corruption)",
        ("linear", "hermite", "cubic", "smooth", "median", "motion"),
    )
    # The Sobolev loss
    order: int = setting(2, "highest derivative in the Sobolev term (k in the paper)", low=0)
    p: float = setting(2.0, "exponent of the loss, at least 1; inf for the maximum norm", low=1)
    mu: float | str = setting(
        "auto",
        "weight of the Sobolev term; auto: from noise and roughness of the data; search: by short trials",
        ("auto", "search"),
        low=0,
    )
    root: bool = setting(False, "take the final 1/p root of the loss")
    sobolev_every: int = setting(4, "one step in so many has the Sobolev term, with so many times the weight", low=1)
    # Dummy points, hiding, noise
    dummies: int = setting(10, "dummy points per sample and step", low=0)
    dummy_law: str = setting("stratified", "where dummy points fall", ("uniform", "stratified", "regular"))
    hide: float = setting(
        0.5, "largest fraction of a sample's points hidden per step; 0 is the paper's", low=0, high=0.95
    )
    noise: float | str = setting(
        "auto",
        "sd of the noise on context values while training, in units of the values' sd; auto: estimated from the data",
        ("auto",),
        low=0,
    )
    coord_noise: float = setting(0.0, "sd of the noise on context coordinates while training, domain = 1", low=0)
    # Training
    steps: int = setting(1200, "training steps", low=1)
    batch: int = setting(32, "samples per step", low=1)
    optimiser: str = setting(
        "auto", "muon: orthogonal steps of the blocks' matrices; auto: muon for frames", ("auto", "adamw", "muon")
    )
    learning_rate: float = setting(2e-3, "peak learning rate", low=0)
    warmup: float = setting(0.05, "fraction of the steps spent warming up; a cosine follows", low=0, high=1)
    weight_decay: float = setting(1e-2, "decay of the weights, times the learning rate", low=0)
    clip: float = setting(1.0, "largest gradient norm; 0: no limit", low=0)
    validation: float = setting(0.1, "fraction of the samples held out for choosing the best weights", low=0, high=0.9)
    patience: float = setting(0.5, "stop after this fraction of the steps without improvement", low=0)
    max_minutes: float | None = setting(None, "cap on training time; the best weights so far are kept", low=0)
    seed: int = setting(0, "seed of everything random", low=0, high=2**32 - 1)
    precision: str = setting(
        "float32",
        "arithmetic; bfloat16: float32, but products of linear layers in bfloat16, for machines that are faster so",
        ("float32", "float64", "bfloat16"),
    )
    threads: int | str = setting(
        "auto",
        "CPU threads; auto: one for small networks, OMP_NUM_THREADS or every core for large ones",
        ("auto",),
        low=1,
    )
    compile: str = setting(
        "auto",
        "torch.compile for the Taylor kernels; auto: where a C++ compiler exists and the run is long enough",
        ("auto", "always", "never"),
    )
    device: str = setting("auto", "auto, cpu, cuda, cuda:1, mps, …")
    devices: int = setting(1, "processes on each machine that share a batch, one a GPU or share of the CPU", low=1)
    nodes: int = setting(1, "machines; torchrun or SLURM starts the processes on them", low=1)
    strategy: str = setting("ddp", "what processes keep: all weights (ddp) or a share of them (fsdp)", ("ddp", "fsdp"))


PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "smoke": {"width": 16, "layers": 2, "heads": 2, "feedforward": 32, "steps": 30, "batch": 8},
    # Fields and movies of a few hundred samples and more, for minutes on one core: small batches, one frame hidden.
    "frames": {
        "width": 96,
        "feedforward": 192,
        "frequency": 1.5,
        "order": 1,
        "sobolev_every": 16,
        "hide": 0.3,
        "batch": 4,
        "steps": 3000,
        "learning_rate": 2.5e-3,
        "validation": 0.04,
    },
    # The published architecture and loss. The optimiser and dropout, which the paper does not state, are ours: the
    # dropout of the published notebook keeps a network of 32 features from fitting even the observed points.
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
        "dummies": 50,
        "dummy_law": "uniform",
        "hide": 0.0,
        "noise": 0.1,
        "batch": 10,
        "optimiser": "adamw",
        "learning_rate": 1e-3,
        "weight_decay": 1e-7,
    },
}


def setting_fields() -> dict[str, dataclasses.Field]:
    """All settings by name."""
    return {f.name: f for f in dataclasses.fields(Settings)}


def preset(name: str) -> dict[str, Any]:
    """Look up the settings of a preset, as changes to the defaults."""
    if name not in PRESETS:
        raise unknown("preset", name, PRESETS)
    return dict(PRESETS[name])


def check_settings(values: dict[str, Any]) -> None:
    """Refuse unknown names and values outside what a setting allows.

    >>> check_settings({"patern": "joint"})
    Traceback (most recent call last):
    cstformer.errors.CSTError: unknown setting 'patern'; did you mean 'pattern'? Valid: attention_kind, ...
    """
    known = setting_fields()
    for name, value in values.items():
        if name not in known:
            raise unknown("setting", name, known)
        check_one(known[name], value)
    width, heads = (values.get(n, known[n].default) for n in ("width", "heads"))
    if width % heads:
        raise CSTError(
            f"width={width} is not a multiple of heads={heads}; choose e.g. width={heads * (width // heads + 1)}"
        )


def check_one(setting: dataclasses.Field, value: Any) -> None:
    """Refuse a value that this setting does not allow."""
    kind, meta = str(setting.type), setting.metadata
    wanted = kind.replace(" | ", " or ")
    choices = meta["choices"]
    if value is None and "None" in kind:
        return
    if isinstance(value, bool) or kind == "bool":
        if not (isinstance(value, bool) and kind == "bool"):
            raise CSTError(f"{setting.name}={value!r}: expected {wanted}")
        return
    if isinstance(value, str):
        if "str" not in kind:
            raise CSTError(f"{setting.name}={value!r}: expected {wanted}, not text")
        if choices and value not in choices:
            raise unknown(f"value of {setting.name}", value, choices)
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
