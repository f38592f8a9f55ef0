"""Which samples train and which are held out, so that the held-out ones are new to the model."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from cstformer.data.lazy import LazyFrames
from cstformer.data.samples import Samples


def hold_out(samples: Samples | LazyFrames, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Numbers of the training samples and of the validation samples.

    Samples are divided at random, unless they are windows of recordings that share points: there a held-out window
    would have been seen in its neighbours. Then whole recordings are held out, or else the last windows of one, and
    windows that share points with these belong to neither part. The random division stays if less than half of the
    samples would be left for training.
    """
    training, held_out = split_samples(len(samples), fraction, seed)
    if len(training) + len(held_out) > len(samples):  # too few samples: all of them serve both
        return training, held_out
    recording, begin, end = _spans(samples)
    order = np.lexsort((begin, recording))
    same = recording[order][1:] == recording[order][:-1]
    if not bool((same & (begin[order][1:] <= end[order][:-1])).any()):
        return training, held_out
    names, sizes = np.unique(recording, return_counts=True)
    if len(names) > 1 and fraction * len(names) >= 1:
        shuffled = np.random.default_rng(seed).permutation(len(names))
        enough = int((np.cumsum(sizes[shuffled]) < len(held_out)).sum()) + 1
        held = np.isin(recording, names[shuffled[:enough]])
        rest = ~held
    else:
        own = order[recording[order] == names[np.random.default_rng(seed).integers(len(names))]]
        held = np.isin(np.arange(len(samples)), own[-len(held_out) :])
        first = begin[held].min()
        rest = ~held & ((recording != recording[own[0]]) | (end < first))
    if 2 * int(rest.sum()) < len(samples):
        return training, held_out
    shuffle = torch.cat([training, held_out])  # the order of the random division
    return shuffle[torch.as_tensor(rest)[shuffle]], shuffle[torch.as_tensor(held)[shuffle]]


def share_points(samples: Samples, first: Tensor, second: Tensor) -> bool:
    """Whether a window of the one part overlaps a window of the other, or a sample is in both."""
    recording, begin, end = _spans(samples)
    a, b = first.numpy(), second.numpy()
    same = recording[a][:, None] == recording[b]
    return bool((same & (begin[a][:, None] <= end[b]) & (begin[b] <= end[a][:, None])).any())


def _spans(samples: Samples | LazyFrames) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Recording, beginning and end of each sample, along the axis on which windows were cut."""
    if isinstance(samples, LazyFrames):
        last = samples.starts + samples.window - 1
        return np.zeros(len(samples), dtype=int), samples.clock[samples.starts], samples.clock[last]
    moved = np.ptp(samples.origin, axis=0)
    windows = bool(moved.any())  # else an "@" in a name means nothing
    recording = np.array([str(name).rsplit("@", 1)[0] if windows else str(name) for name in samples.sample_ids])
    axis = int(moved.argmax())
    place = np.where(samples.point_observed, samples.coords[..., axis], -np.inf).max(1)
    begin = samples.origin[:, axis]
    return recording, begin, begin + place


def split_samples(count: int, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """Training and validation samples of a data set; with fewer than five samples the same ones serve both.

    >>> training, held_out = split_samples(10, 0.2, seed=0)
    >>> len(training), len(held_out), sorted(torch.cat([training, held_out]).tolist()) == list(range(10))
    (8, 2, True)
    """
    shuffled = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    held = max(1, round(fraction * count)) if count >= 5 and fraction > 0 else 0
    return (shuffled[held:], shuffled[:held]) if held else (shuffled, shuffled)
