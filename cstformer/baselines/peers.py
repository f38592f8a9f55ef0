"""SAITS and BRITS of PyPOTS (extra ``peers``), trained and asked in a process of their own.

PyPOTS prints a banner, installs loggers and writes files; none of this reaches the calling process. The models know
sequences with missing cells, not coordinates. Samples that share a grid become sequences on that grid. Otherwise the
points and the queries of a sample, in the order of time, are the steps of its sequence, and time is one more channel.

Training takes the whole time allowed. A tenth of the samples is held out, as in CST, and the weights with the lowest
error at cells hidden from them are kept.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from cstformer.data.holding_out import split_samples
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, unknown
from cstformer.system.files import read_npz

PEERS: dict[str, dict[str, Any]] = {
    # the example in the documentation of PyPOTS; 1.3 million weights for seven channels
    "SAITS": {"n_layers": 2, "d_model": 256, "n_heads": 4, "d_k": 64, "d_v": 64, "d_ffn": 128, "dropout": 0.1},
    "BRITS": {"rnn_hidden_size": 256},
}
"""Sizes of each model."""
HELD_OUT = 0.1  # share of the training samples
HIDDEN = 0.2  # share of the cells hidden from held-out samples, as PyPOTS hides in training
MISSING = 'PyPOTS is not installed; pip install "cstformer[peers]"'
CODE = "from cstformer.baselines.peer_process import main; main()"


def peers_installed() -> bool:
    """Whether PyPOTS can be imported."""
    return importlib.util.find_spec("pypots") is not None


@dataclass(frozen=True)
class PeerAnswer:
    """Answers (N, m, c) of a trained model, and the facts of its training."""

    values: Float[np.ndarray, "N m c"]
    parameters: int
    steps: int
    seconds: float


def impute(
    name: str,
    train: Samples,
    context: Samples,
    at: Float[np.ndarray, "N m 1"],
    minutes: float,
    seed: int = 0,
    sizes: dict[str, Any] | None = None,
) -> PeerAnswer:
    """Train a model of PyPOTS on samples and ask it for values of others.

    Parameters
    ----------
    name : ``SAITS`` or ``BRITS``
    train, context, at : as in the ``fit`` and ``predict`` of every model
    minutes : training time; the epoch at work is finished, so that it may take longer
    seed : of weights, batches and hidden cells
    sizes : changes to the sizes in `PEERS`
    """
    if name not in PEERS:
        raise unknown("peer", name, PEERS)
    if not peers_installed():
        raise CSTError(MISSING)
    grid = Grid.of(train, context, at)
    shown, places = grid.sequences(context, at)
    learn, _ = grid.sequences(train)
    scale = _scale(learn)
    learn, shown = ((x - scale[0]) / scale[1] for x in (learn, shown))
    kept, held_out = (index.numpy() for index in split_samples(len(learn), HELD_OUT, seed))
    hidden = _hide(learn[held_out], points=grid.times is None, channels=train.c, seed=seed)
    arrays = {"train": learn[kept], "complete": learn[held_out], "hidden": hidden, "shown": shown}
    settings = {"name": name, "minutes": minutes, "seed": seed, "sizes": PEERS[name] | (sizes or {})}
    done = _run(arrays, settings)
    answer = (done["answer"] * scale[1] + scale[0])[..., : context.c]
    values = np.take_along_axis(answer, places[..., None], axis=1)
    return PeerAnswer(values, int(done["parameters"]), int(done["steps"]), float(done["seconds"]))


@dataclass(frozen=True)
class Grid:
    """How samples become sequences: on ``times`` that all share, or each on its own times if that is None."""

    times: Float[np.ndarray, " T"] | None
    length: int
    """Steps of the longest sequence."""

    @classmethod
    def of(cls, train: Samples, context: Samples, at: np.ndarray) -> Grid:
        """Share a grid if the times of all samples and queries together are no more than the points of a sample."""
        if train.d > 1:
            raise CSTError(f"models of PyPOTS need curves (d = 1), got {train}")
        seen = [s.coords[..., 0][s.point_observed] for s in (train, context)]
        times = np.unique(np.concatenate([*seen, at.ravel()]))
        longest = max(train.n, context.n, at.shape[1])
        if len(times) <= longest:
            return cls(times, len(times))
        asked = [len(np.union1d(t[s], q)) for t, s, q in zip(_times(context), context.point_observed, at, strict=True)]
        return cls(None, max(longest, *asked))

    def sequences(self, samples: Samples, at: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Values (N, T, c) with NaN where nothing was observed, and the step (N, m) of each query.

        Without a common grid, time is the last channel.
        """
        at = np.zeros((len(samples), 0, 1)) if at is None else at
        extra = 0 if self.times is not None else 1
        out = np.full((len(samples), self.length, samples.c + extra), np.nan)
        places = np.empty(at.shape[:2], dtype=int)
        values = np.where(samples.observed, samples.values, np.nan)
        for i, (t, exists) in enumerate(zip(_times(samples), samples.point_observed, strict=True)):
            steps = self.times if self.times is not None else np.union1d(t[exists], at[i])
            out[i, np.searchsorted(steps, t[exists]), : samples.c] = values[i, exists]
            places[i] = np.searchsorted(steps, at[i, :, 0])
            if extra:
                out[i, : len(steps), -1] = steps
        return out, places


def _times(samples: Samples) -> np.ndarray:
    return samples.coords[..., 0]


def _scale(values: Float[np.ndarray, "N T c"]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of each channel; 0 and 1 where it was never observed, 1 where it is constant."""
    seen = ~np.isnan(values)
    count = np.maximum(seen.sum((0, 1)), 1)
    mean = np.where(seen, values, 0.0).sum((0, 1)) / count
    sd = np.sqrt(np.where(seen, (values - mean) ** 2, 0.0).sum((0, 1)) / count)
    return mean, np.where(sd > 0, sd, 1.0)


def _hide(values: Float[np.ndarray, "N T c"], points: bool, channels: int, seed: int) -> Float[np.ndarray, "N T c"]:
    """Copy in which a share of the cells, or of the whole steps, of the first ``channels`` is hidden."""
    drawn = np.random.default_rng(seed).random((*values.shape[:2], 1 if points else channels))
    hide: Bool[np.ndarray, "N T c"] = np.broadcast_to(drawn < HIDDEN, (*values.shape[:2], channels))
    out = values.copy()
    out[..., :channels][hide] = np.nan
    return out


def _run(arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> dict[str, np.ndarray]:
    """Run `peer_process` on these arrays; an interruption ends it."""
    with tempfile.TemporaryDirectory(prefix="cst-peer-") as name:
        folder = Path(name)
        np.savez(folder / "arrays.npz", **arrays)  # type: ignore[arg-type]
        (folder / "settings.json").write_text(json.dumps(settings | {"parent": os.getpid()}))
        with (folder / "log.txt").open("wb") as log:
            command = [sys.executable, "-c", CODE, str(folder)]
            code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder).returncode
        if code:
            lines = (folder / "log.txt").read_text(errors="replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "no message")
            raise CSTError(f"{settings['name']} of PyPOTS failed: {last}")
        return read_npz(folder / "answer.npz")
