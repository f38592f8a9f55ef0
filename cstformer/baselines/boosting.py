"""Gradient boosting on hand-made features: the table-based rival of imputation.

Each channel has a model of its own, an ensemble of regression trees (scikit-learn's `HistGradientBoostingRegressor`).
It is trained on cells that were hidden from training samples, and sees of a hidden cell (time t, channel k)

    the observed values of channel k before and after t, and the times to both,
    the mean and the number of the observed values of channel k in the sample,
    t, and the linear interpolation at t of every channel, k included.

The trees learn what to add to the linear interpolation of channel k. A feature that does not exist, such as the value
after the last one, is NaN, for which a tree learns a direction at every split.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from sklearn.ensemble import HistGradientBoostingRegressor
from torch import Tensor

from cstformer.baselines.trees import Trees
from cstformer.data.samples import Samples
from cstformer.models.model import Model
from cstformer.training.disturbance import Disturbance
from cstformer.training.settings import setting

OWN = 7  # features of a cell before the linear interpolations of all channels
CELLS_PER_PASS = 2**22  # cells of points and queries handled at once: bounds the memory
FEWEST = 20  # hidden cells below which a channel gets no trees: one leaf holds as many


@dataclass(kw_only=True, eq=False, repr=False)
class GradientBoosting(Model):
    """Linear interpolation, corrected by boosted regression trees; see the module's docstring.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> t, x = np.linspace(0, 1, 12), rng.normal(size=(60, 12))
    >>> both = np.stack([x, -x], axis=-1)  # the second channel is known from the first
    >>> model = GradientBoosting().fit(Samples(t, np.where(rng.random(both.shape) < 0.2, np.nan, both)))
    >>> y = model.predict(Samples(t, np.stack([x, np.where(t == t[6], np.nan, -x)], axis=-1)), t)
    >>> bool(np.abs(y[:, 6, 1] + x[:, 6]).mean() < 0.6)  # a line is wrong by 1 on average
    True
    """

    name: ClassVar[str] = "boosting"
    label: ClassVar[str] = "Gradient boosting"
    curves_only: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {"trees": 30, "repeats": 2},
        "paper": {},
    }

    trees: int = setting(200, "trees of each channel", low=1)
    shrinkage: float = setting(0.05, "factor on the values of each tree", low=0.001, high=1)
    leaves: int = setting(31, "largest number of leaves of a tree", low=2)
    hide: float = setting(0.5, "largest fraction of a sample's points, or cells, hidden at a time", low=0.05, high=0.95)
    repeats: int = setting(6, "times that each sample is hidden from in another way", low=1)

    def _fit(self, samples: Samples, state: Path | None, progress: bool) -> None:
        batch = self.kind_.batch(samples, torch.float64, torch.device("cpu"))
        disturbance = Disturbance(self.hide, cells=self.kind_.cell_gaps(batch))
        generator = torch.Generator().manual_seed(self.seed)
        times, values, observed = batch.coords[..., 0].numpy(), batch.values.numpy(), batch.observed.numpy()
        rows: list[list[np.ndarray]] = [[] for _ in range(samples.c)]  # of each channel: features and target
        for _ in range(self.repeats):
            keep = disturbance.keep(batch.observed, batch.exists, generator).numpy()
            for part in _parts(len(samples), 2 * samples.n * samples.c):
                gaps = Gaps(times[part], values[part], keep[part], times[part])
                for k, hidden in enumerate(np.moveaxis(observed[part] & ~keep[part], -1, 0)):
                    x, target = gaps.features(k)[hidden], (values[part][..., k] - gaps.guess(k))[hidden]
                    rows[k].append(np.column_stack([x, target]).astype(np.float32))
        self.trees_ = Trees.of([self._boosted(np.concatenate(parts)) for parts in rows], self.trees)

    def _boosted(self, rows: np.ndarray) -> HistGradientBoostingRegressor | None:
        """Fit the trees of one channel to rows of features and target."""
        if len(rows) < FEWEST:
            return None
        model = HistGradientBoostingRegressor(
            max_iter=self.trees,
            learning_rate=self.shrinkage,
            max_leaf_nodes=self.leaves,
            early_stopping=False,
            random_state=self.seed,
        )
        return model.fit(rows[:, :-1], rows[:, -1])

    def _predict(self, context: Samples, queries: np.ndarray) -> np.ndarray:
        batch = self.kind_.batch(context, torch.float64, torch.device("cpu"))
        times, values, observed = batch.coords[..., 0].numpy(), batch.values.numpy(), batch.observed.numpy()
        at = self.scaling_.coords(queries)[..., 0]
        out = np.empty((*at.shape, context.c))
        for part in _parts(len(context), (context.n + at.shape[1]) * context.c):
            gaps = Gaps(times[part], values[part], observed[part], at[part])
            for k in range(context.c):
                x = gaps.features(k)
                out[part, :, k] = gaps.guess(k) + self.trees_.sums(k, x.reshape(-1, x.shape[-1])).reshape(x.shape[:-1])
        return self.scaling_.values(out)

    def _tensors(self) -> dict[str, Tensor]:
        return self.trees_.tensors()

    def _restore(self, tensors: dict[str, Tensor], about: dict[str, Any], d: int, c: int) -> None:
        self.trees_ = Trees.from_tensors(tensors, channels=c, features=OWN + c)


class Gaps:
    """What the observed cells of samples say about their channels at other times.

    Parameters
    ----------
    times, values, seen : points of the samples, (N, n), (N, n, c) and (N, n, c); only cells that are ``seen`` are read
    at : times of the queries, (N, m)

    Examples
    --------
    >>> y, seen = np.array([[[1.0], [3.0], [9.0]]]), np.array([[[True], [True], [False]]])
    >>> gaps = Gaps(np.array([[0.0, 2.0, 4.0]]), y, seen, np.array([[0.5, 3.0]]))
    >>> gaps.linear[0, :, 0].tolist()  # between both points, then held constant
    [1.5, 3.0]
    >>> gaps.features(0)[0, 0].tolist()  # before, time since, after, time to, mean, count, time, linear
    [1.0, 0.5, 3.0, 1.5, 2.0, 2.0, 0.5, 1.5]
    """

    def __init__(
        self,
        times: Float[np.ndarray, "N n"],
        values: Float[np.ndarray, "N n c"],
        seen: Bool[np.ndarray, "N n c"],
        at: Float[np.ndarray, "N m"],
    ):
        (count, n), m = times.shape, at.shape[1]
        # Points and queries in one sequence; a point comes before a query of the same time.
        order = np.concatenate([times, at], axis=1).argsort(axis=1, kind="stable")
        place = order.argsort(axis=1)[:, n:, None]  # of the queries in that sequence, (N, m, 1)
        marks = np.concatenate([seen, np.zeros((count, m, seen.shape[2]), dtype=bool)], axis=1)
        marks = np.take_along_axis(marks, order[..., None], axis=1)
        step = np.arange(n + m)[:, None]
        last = np.maximum.accumulate(np.where(marks, step, -1), axis=1)
        following = np.minimum.accumulate(np.where(marks, step, n + m)[:, ::-1], axis=1)[:, ::-1]
        self.before, since = self._read(times, values, order, np.take_along_axis(last, place, 1), at)
        self.after, until = self._read(times, values, order, np.take_along_axis(following, place, 1), at)
        self.since, self.until = -since, until
        with np.errstate(invalid="ignore"):
            weight = self.since / np.maximum(self.since + self.until, 1e-12)
        between = self.before + weight * (self.after - self.before)
        one_side = np.where(np.isnan(self.before), self.after, self.before)
        self.linear = np.where(np.isnan(between), one_side, between)  # (N, m, c)
        self.count = seen.sum(1).astype(float)  # (N, c)
        total = np.where(seen, values, 0.0).sum(1)
        self.mean = np.where(self.count > 0, total / np.maximum(self.count, 1), np.nan)
        self.at = at

    @staticmethod
    def _read(
        times: np.ndarray, values: np.ndarray, order: np.ndarray, place: np.ndarray, at: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Values at these places of the sequence, and their times relative to the queries; NaN beyond its ends."""
        exists = (place >= 0) & (place < order.shape[1])
        point = np.where(exists, np.take_along_axis(order[..., None], np.where(exists, place, 0), 1), 0)
        value = np.take_along_axis(values, point, axis=1)
        moment = np.take_along_axis(times[..., None], point, axis=1)
        return np.where(exists, value, np.nan), np.where(exists, moment - at[..., None], np.nan)

    def features(self, k: int) -> Float[np.ndarray, "N m features"]:
        """Features of channel ``k`` at the queries."""
        own = [x[..., k] for x in (self.before, self.since, self.after, self.until)]
        own += [np.broadcast_to(x[:, None, k], self.at.shape) for x in (self.mean, self.count)]
        return np.concatenate([np.stack([*own, self.at], axis=-1), self.linear], axis=-1)

    def guess(self, k: int) -> Float[np.ndarray, "N m"]:
        """Linear interpolation of channel ``k``, or 0, its standardised mean, in samples that do not have it."""
        return np.nan_to_num(self.linear[..., k], nan=0.0)


def _parts(count: int, cells: int) -> Iterator[slice]:
    """Split samples of this many cells each into parts that fit in memory."""
    size = max(1, CELLS_PER_PASS // cells)
    return (slice(i, i + size) for i in range(0, count, size))
