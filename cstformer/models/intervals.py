"""Answers with what they may be wrong by: intervals and standard deviations, in the user's units."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from cstformer.data.batch import PAIRS_PER_PASS, Batch, as_batches
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models import reader
from cstformer.models.arithmetic import arithmetic
from cstformer.models.calibration import Answer, Calibration, calibrate
from cstformer.models.recordings import blended, is_recording
from cstformer.network.architecture import parameter_count
from cstformer.system.threads import thread_limit
from cstformer.taylor.derivatives import MultiIndex, plan

if TYPE_CHECKING:
    from cstformer.models.cst import CST

Values = Float[np.ndarray, "N m c"]


def bounds(
    model: CST, context: Samples, queries: Float[np.ndarray, "N m d"], level: float, noise: bool
) -> tuple[Values, Values, Values]:
    """Values, and lower and upper ends of their intervals; see `CST.interval`."""
    found = calibration_of(model)
    factor = found.factor(level, model.names_["value_names"], np.empty((0, context.c)))
    values, process = _values_and_process(model, context, queries)
    # In the model's units and back, so that bounds of robust channels are as skewed as their values.
    z, half = model.scaling_.standardised(values), factor * np.sqrt(found.variance(process, noise))
    return values, model.scaling_.values(z - half), model.scaling_.values(z + half)


def with_sd(
    model: CST, context: Samples, queries: Float[np.ndarray, "N m d"], index: MultiIndex, noise: bool = False
) -> tuple[Values, Values]:
    r"""Derivative :math:`D^q` of the function and its standard deviation; with ``noise``, that of an observation.

    At order 0 the variance is :math:`v_f(x)` (`calibration`). At higher orders it is that of the process,
    :math:`\operatorname{Var} D^q f(x)`, times :math:`v_f(x) / s^2(x)`, the factor of the value at the same place.
    Nobody observes derivatives, so that nothing could calibrate them. In windows of a recording it is an upper bound,
    see `recordings.blended`.
    """
    found, zero = calibration_of(model), (0,) * context.d
    if index == zero:
        answer, process = _values_and_process(model, context, queries)
        values, larger = answer, np.ones_like(process)
    elif is_recording(model, context):
        answer = model._in_windows(context, queries, [index], functools.partial(reader.derivatives, model))[0]
        ask = lambda windows, at, wanted: [with_sd(model, windows, at, q, noise)[1] for q in wanted]  # noqa: E731
        return answer, blended(model, context, queries, [index], ask, bound=True)[0]
    else:
        values, answer, process, own = reader.derivatives(model, context, queries, [zero, index], spread=True)
        larger = own / process
    slope = model.scaling_.slope(model.scaling_.standardised(values))  # of the user's values with the model's
    sd = slope * np.sqrt(found.variance(process, noise) * larger)
    return answer, sd / np.prod(model.scaling_.span ** np.array(index))


def _values_and_process(model: CST, context: Samples, queries: np.ndarray) -> tuple[Values, Values]:
    """Values in the user's units and variances of the process in the model's.

    In windows both are blended: the average of answers has at most the average of their variances.
    """

    def ask(windows: Samples, at: np.ndarray, wanted: list[MultiIndex]) -> list[np.ndarray]:
        return [np.concatenate(reader.derivatives(model, windows, at, wanted, spread=True), -1)]

    both = model._in_windows(context, queries, [(0,) * context.d], ask)[0]
    return both[..., : context.c], both[..., context.c :]


def calibration_of(model: CST) -> Calibration:
    """The calibration of a fitted model, or an error that says how to get one."""
    found = getattr(model, "calibration_", None)
    if found is None:
        raise CSTError(
            "this model has no scores of held-out samples: version 0.1.0 did not keep them, and a fit on fewer than "
            "five samples or with validation=0 has none; call calibrate(samples) with samples it was not trained on"
        )
    return found


def calibrated(model: CST, batch: Batch, given: Tensor | None = None) -> Calibration | None:
    """Calibrate a trained model on held-out samples; None if it has no finite answers."""
    channels = model.kind_.state_shape(batch.values.shape[-1])[-1]
    with arithmetic(model), thread_limit(model.threads, parameter_count(model.network_)):
        found = calibrate(answer_of(model), batch, model.kind_.noises, channels, model.cells_, model.seed, given)
    return found if np.isfinite(found.scores).all() and len(found.scores) else None


def answer_of(model: CST) -> Answer:
    """Answers of a trained model and variances of its process, for `calibrate`."""

    def answer(context: Batch, at: Tensor) -> tuple[Tensor, Tensor]:
        parts: list[tuple[Tensor, Tensor]] = []
        d = at.shape[-1]
        n = max(1, context.coords.shape[1])
        for index in as_batches(len(context), min(64, reader.TOKENS_PER_PASS // n, PAIRS_PER_PASS // n**2)):
            one = reader.Reader(model, None, context[index])  # type: ignore[arg-type]  # the batch is all it reads
            x = at[index.to(at.device)]
            parts.append((one.series(x, plan(d, [])).value, one.spread(x, (0,) * d)))
        return torch.cat([y for y, _ in parts]), torch.cat([s for _, s in parts])

    return answer
