"""Measurements of a model of simulated animals: frames, frames in between, the decoded stimulus, attention."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float, Int

from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frame_queries, stitch
from cstformer.data.samples import Samples
from cstformer.experiments.calcium.decoding import (
    BLOCKED,
    RANDOM,
    Split,
    blocked_splits,
    decode,
    inner_products,
    last_frame,
    random_splits,
    segment_attention,
)
from cstformer.experiments.calcium.rows import Config
from cstformer.experiments.calcium.task import (
    Animal,
    Animals,
    drawn_starts,
    last_labels,
    load_animal,
    movie_scores,
    segments,
    shown_starts,
    true_frames,
)
from cstformer.models.cst import CST

RECONSTRUCTION, BETWEEN = "reconstruction", "frames in between"
FRAMES = (RECONSTRUCTION, BETWEEN)
CHOSEN = "chosen"
ANSWER, LATENT, ALL_FRAMES = "answer", "latent state", "all frames"
"""What a row may be decoded from: its last frame, its latent state at that time, and, for raw data, all frames."""
MOMENTS = (-0.5, 0.3, 0.8, 1.5, 2.3, 4.0)  # seconds from the onset of a stimulus, in the figure
SHOWN_SEGMENTS = 3  # of the first animal, whose frames in between are kept for the figures

Arrays = dict[str, np.ndarray]


def measure_animals(
    model: Any, raw: bool, animals: Animals, config: Config, seed: int
) -> tuple[Arrays, dict[str, Any]]:
    """Scores of each scored animal and images for the figures, and what the model is decoded from.

    ``raw``: the model copies the data. Of all that a model offers, the training part of training animals chooses what
    it is decoded from, in the same way for every row.
    """
    arrays = measured_frames(model, animals, config)
    scores = _scores_in_training(model, raw, animals, config, seed)
    way = max(scores, key=lambda name: scores[name])
    arrays |= _decoded(model, raw, way, animals, config, seed)
    if isinstance(model, CST):
        arrays |= _story(model, animals)
    return arrays, {"way": way, "chosen_by": scores}


def measured_frames(model: Any, animals: Animals, config: Config) -> Arrays:
    """Scores of frames against the noise-free signal, at the given times and halfway between them.

    Scores are computed in ΔF/F. In z-scores, pixels in which preprocessing left almost no signal would count most.
    """
    scores: dict[str, list[float]] = {}
    kept: Arrays = {}
    for i in animals.test:
        animal = load_animal(animals, i)
        starts = shown_starts(animals, animal, config.shown)
        context = segments(animals, animal, starts)
        given = animal.clock[: animals.window] - animal.clock[0]
        for kind, times in zip(FRAMES, (given, (given[1:] + given[:-1]) / 2), strict=True):
            truth = true_frames(animals, i, starts, times)
            y = animal.sd * predicted(model, context, animals.layout(animal), times)
            pair = [x[..., animal.mask].reshape(-1, int(animal.mask.sum())) for x in (y, truth)]
            for name, score in movie_scores(*pair).items():
                scores.setdefault(f"{kind} {name}", []).append(score)
            if i == animals.test[0] and kind == BETWEEN:
                middle = len(times) // 2
                kept = {"pictures": y[:SHOWN_SEGMENTS, middle].astype(np.float32)}
    return {name: np.array(x) for name, x in scores.items()} | kept


def predicted(
    model: Any, context: Samples, layout: PatchLayout, times: Float[np.ndarray, " m"]
) -> Float[np.ndarray, "N m H W"]:
    """Whole frames of each segment at any times."""
    return stitch(model.predict(context, frame_queries(layout, times)), layout)[..., 0]


def _features(model: Any, raw: bool, context: Samples) -> Arrays:
    """Features of each segment for the decoder, by what they are."""
    last = last_frame(context)
    seen = np.isin(context.coords[0], last).all(-1)  # patches of the last frame, whose pixels outside the cortex are 0
    found = {ANSWER: np.where(context.observed[:, seen], model.predict(context, last), 0)}
    if raw:
        found[ALL_FRAMES] = context.values
    elif isinstance(model, CST):
        found |= segment_attention(model, context).ways
    elif hasattr(getattr(model, "network_", None), "latent"):
        found[LATENT] = model.latent(context)
    return found


def _splits(starts: Int[np.ndarray, " N"], animals: Animals, animal: Animal, config: Config, seed: int) -> dict:
    block = round(config.block / float(np.median(np.diff(animal.clock))))
    splits: dict[str, list[Split]] = {RANDOM: random_splits(len(starts), seed)}
    return splits | {BLOCKED: blocked_splits(starts, animals.window, block, seed)}


def _scores_in_training(model: Any, raw: bool, animals: Animals, config: Config, seed: int) -> dict[str, float]:
    """R² of all that a model may be decoded from, on the training part of training animals, with the blocked split."""
    scores: dict[str, list[float]] = {}
    for i in range(config.choosing):
        animal = load_animal(animals, i)
        starts = drawn_starts(animals, animal, config.segments, 100 + i, training=True)
        labels = last_labels(animals, animal, starts)
        splits = _splits(starts, animals, animal, config, seed)[BLOCKED]
        for way, x in _features(model, raw, segments(animals, animal, starts)).items():
            scores.setdefault(way, []).append(decode(inner_products(x), labels, splits)[1])
    return {way: float(np.mean(found)) for way, found in scores.items()}


def _decoded(model: Any, raw: bool, chosen: str, animals: Animals, config: Config, seed: int) -> Arrays:
    """Mean squared error and R², (animals, 2), of each split and summary; the chosen one also as `CHOSEN`."""
    found: dict[str, list[tuple[float, float]]] = {}
    for i in animals.test:
        animal = load_animal(animals, i)
        starts = drawn_starts(animals, animal, config.segments, i)
        labels = last_labels(animals, animal, starts)
        splits = _splits(starts, animals, animal, config, seed)
        for way, x in _features(model, raw, segments(animals, animal, starts)).items():
            products = inner_products(x)
            for split, pairs in splits.items():
                found.setdefault(f"{split} {way}", []).append(decode(products, labels, pairs))
    arrays = {name: np.array(x) for name, x in found.items()}
    return arrays | {f"{split} {CHOSEN}": arrays[f"{split} {chosen}"] for split in (RANDOM, BLOCKED)}


def _story(model: CST, animals: Animals) -> Arrays:
    """Last frames of segments around the strongest stimulus of a scored animal, and attention by contrast."""
    number = animals.test[0]
    animal, made = load_animal(animals, number), animals.simulation(number)
    first = animal.clock[animal.first_test + animals.window]
    within = (made.stimuli.start > first) & (made.stimuli.start + max(MOMENTS) < animal.clock[-1])
    onset = made.stimuli.start[within][np.argmax(made.stimuli.contrast[within])]
    ends = np.searchsorted(animal.clock, onset + np.array(MOMENTS))
    starts = np.minimum(ends, len(animal.clock) - 1) - animals.window + 1
    context, layout = segments(animals, animal, starts), animals.layout(animal)
    last = animal.clock[[animals.window - 1]] - animal.clock[0]
    data = animal.sd * animal.frames[starts + animals.window - 1]
    spread = shown_starts(animals, animal, 20 * SHOWN_SEGMENTS)
    attention = segment_attention(model, segments(animals, animal, spread)).received
    labels = last_labels(animals, animal, spread)
    return {
        "story onset": np.array([onset]),
        "story data": data.astype(np.float32),
        "story truth": true_frames(animals, number, starts, last)[:, 0].astype(np.float32),
        "story prediction": (animal.sd * predicted(model, context, layout, last)[:, 0]).astype(np.float32),
        "story attention": segment_attention(model, context).received.astype(np.float32),
        "labels": np.unique(labels),
        "attention by label": np.stack([attention[labels == x].mean(0) for x in np.unique(labels)]).astype(np.float32),
    }
