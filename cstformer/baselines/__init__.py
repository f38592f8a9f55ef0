"""Rivals of CST. Each family has a file and each rival an entry in `BASELINES`; each is a `models.model.Model`."""

from __future__ import annotations

from cstformer.baselines.bert import BertTransformer, TransformerLinear, TransformerSpline
from cstformer.baselines.blind_spot import BlindSpot
from cstformer.baselines.boosting import GradientBoosting
from cstformer.baselines.filters import CopyInput, MedianFilter, NonLocalMeans, SwitchingMedian
from cstformer.baselines.fourier_operators import FNO2D, FNO3D
from cstformer.baselines.interpolation import (
    CoKriging,
    CopyNearest,
    CubicSpline,
    GaussianProcess,
    LastValue,
    LinearInterpolation,
    Mean,
    ModesGP,
    ModesLinear,
    SpaceTimeWiener,
    WienerCubic,
)
from cstformer.baselines.latent_ode import LatentODE
from cstformer.baselines.lfads import LFADS
from cstformer.baselines.recurrent import LSTM, ConvGRU, ConvLSTM
from cstformer.baselines.vision_transformers import ViT3D, ViViT
from cstformer.models.model import Model

BASELINES: dict[str, type[Model]] = {
    "mean": Mean,
    "nearest": CopyNearest,
    "last": LastValue,
    "linear": LinearInterpolation,
    "cubic": CubicSpline,
    "gp": GaussianProcess,
    "co-kriging": CoKriging,
    "boosting": GradientBoosting,
    "wiener": WienerCubic,
    "space-time-wiener": SpaceTimeWiener,
    "modes-linear": ModesLinear,
    "modes-gp": ModesGP,
    "transformer": BertTransformer,
    "transformer-linear": TransformerLinear,
    "transformer-spline": TransformerSpline,
    "latent-ode": LatentODE,
    "lfads": LFADS,
    "vit3d": ViT3D,
    "vivit": ViViT,
    "fno2d": FNO2D,
    "fno3d": FNO3D,
    "lstm": LSTM,
    "convlstm": ConvLSTM,
    "convgru": ConvGRU,
    "blind-spot": BlindSpot,
    "copy": CopyInput,
    "median": MedianFilter,
    "switching-median": SwitchingMedian,
    "nlm": NonLocalMeans,
}
"""Rivals by the name that the command line uses."""

__all__ = [
    "BASELINES",
    "FNO2D",
    "FNO3D",
    "LFADS",
    "LSTM",
    "BertTransformer",
    "BlindSpot",
    "CoKriging",
    "ConvGRU",
    "ConvLSTM",
    "CopyInput",
    "CopyNearest",
    "CubicSpline",
    "GaussianProcess",
    "GradientBoosting",
    "LastValue",
    "LatentODE",
    "LinearInterpolation",
    "Mean",
    "MedianFilter",
    "ModesGP",
    "ModesLinear",
    "NonLocalMeans",
    "SpaceTimeWiener",
    "SwitchingMedian",
    "TransformerLinear",
    "TransformerSpline",
    "ViT3D",
    "ViViT",
    "WienerCubic",
]
