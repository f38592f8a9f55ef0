"""One training step by derivative order: Taylor series against nested autograd, with the same loss.

``notebook`` is the workload of the published notebook (10 curves, 10 real and 500 dummy points, width 32, feed-forward
3072, 4 layers, joint). ``default`` is our default model and batch, where order 0 has no dummy points at all. Here every
step has the Sobolev term, not only one of `sobolev_every`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from cstformer.benchmarks.stopwatch import best_seconds, peak_megabytes
from cstformer.data.batch import Batch
from cstformer.network import attention
from cstformer.network.architecture import Architecture
from cstformer.network.transformer import ContinuousTransformer
from cstformer.starts.kinds import unfitted_kind
from cstformer.system.memory import keep_freed_memory
from cstformer.taylor import series
from cstformer.training import losses, sampling
from cstformer.training.objective import SobolevObjective
from cstformer.training.schedule import generator_for
from cstformer.training.settings import Settings, preset

MU = 1e-6


def measure(quick: bool) -> list[dict[str, Any]]:
    """Measure seconds, peak memory and their ratios."""
    keep_freed_memory()
    rows = []
    for case, changes in _cases(quick).items():
        # At the notebook's full size and order 3, nested autograd of the whole batch does not fit into 24 GB.
        pieces = 10 if case == "notebook" and not quick else 1
        settings = {k: Settings(**changes, order=k) for k in range(4)}
        taylor = {f"Taylor, order {k}": taylor_step(s, compiles=not quick) for k, s in settings.items()}
        nested = {f"nested autograd, order {k}": _nested_step(s, pieces) for k, s in settings.items() if k}
        # Timed separately: gigabytes of nested autograd leave the heap in a state that training never meets.
        seconds = best_seconds(taylor, rounds=2 if quick else 4, compiled=taylor, settle=not quick)
        seconds |= best_seconds(nested, rounds=1 if quick else 2)
        alone = {k: dataclasses.replace(s, batch=1) for k, s in settings.items()}
        for name in seconds:
            order, make = int(name[-1]), taylor_step if name.startswith("Taylor") else _nested_step
            row = {"case": f"{case}: {name}", "seconds": seconds[name]}
            row["times order 0"] = seconds[name] / seconds["Taylor, order 0"]
            if order:
                row["times faster than nested"] = seconds[f"nested autograd, order {order}"] / seconds[name]
            row["peak MB a curve"] = peak_megabytes(make(alone[order]))
            rows.append(row)
    return rows


def _cases(quick: bool) -> dict[str, dict[str, Any]]:
    notebook = {**preset("paper"), "dummies": 20 if quick else 500, "p": 2.0, "mu": MU, "dropout": 0.0, "noise": 0.0}
    notebook |= {"sobolev_every": 1}
    default = {"p": 2.0, "mu": MU, "noise": 0.0, "sobolev_every": 1}
    del notebook["order"]
    return {"notebook": notebook, "default": default}


def _curves(count: int, n: int = 10) -> Batch:
    """Sample ``n`` points of smooth random curves in the plane."""
    rng = np.random.default_rng(0)
    t = np.linspace(0, 1, n)
    phase, speed = rng.uniform(0, 6, (2, count, 1))
    y = np.stack([np.sin(speed * t + phase), np.cos(speed * t - phase)], -1)
    coords = torch.as_tensor(np.broadcast_to(t[:, None], (count, n, 1)).copy(), dtype=torch.float32)
    return Batch(coords, torch.as_tensor(y, dtype=torch.float32), torch.ones(count, n, 2, dtype=torch.bool))


def model_of(settings: Settings) -> ContinuousTransformer:
    """Build the network of these settings, for curves in the plane."""
    names = set(Architecture.__dataclass_fields__) & set(Settings.__dataclass_fields__)
    torch.manual_seed(0)
    return ContinuousTransformer(Architecture(d=1, c=2, **{name: getattr(settings, name) for name in names}))


def _objective(network: ContinuousTransformer, settings: Settings, mu: float) -> SobolevObjective:
    """The loss of curves; the start ``smooth`` would need a fitted kernel, ``cubic`` takes its place."""
    start = "cubic" if settings.start == "smooth" else settings.start
    return SobolevObjective(network, unfitted_kind(1, 2), dataclasses.replace(settings, start=start), 0.0, 0.0, mu)


def taylor_step(settings: Settings, points: int = 10, compiles: bool = True) -> Callable[[], Tensor]:
    """Loss and gradient as training computes them; wide layers are compiled, as in a long run."""
    network, batch = model_of(settings), _curves(settings.batch, points)
    objective = _objective(network, settings, MU if settings.order else 0.0)
    compiled = compiles and settings.feedforward >= 1024  # what `compile="auto"` decides for long runs of these sizes

    def step() -> Tensor:
        network.zero_grad()
        with series.compiled_kernels(compiled):
            loss = objective.loss(batch, generator_for(0, 0))
            loss.backward()
        return loss.detach()

    return step


def _nested_step(settings: Settings, pieces: int = 1) -> Callable[[], Tensor]:
    """The same loss by nested forward-mode autograd along a shift of the queries, computed in equal pieces."""
    network, points = model_of(settings), _curves(settings.batch)
    objective = _objective(network, settings, 0.0)

    def step() -> Tensor:
        network.zero_grad()
        context, target, dummies = _random_parts(objective, points, generator_for(0, 0))
        total = torch.zeros(())
        size = settings.batch // pieces
        for first in range(0, settings.batch, size):
            some = torch.arange(first, first + size)
            sampled = context[some], target[some], dummies[some]
            with (
                mock.patch.object(attention, "_FUSE_FROM", 2**62),
                mock.patch.object(F, "layer_norm", _textbook_layer_norm),
            ):
                loss = _nested_loss(objective, points[some], sampled, settings) / pieces
            loss.backward()
            total += loss.detach()
        return total

    return step


def _random_parts(objective: SobolevObjective, points: Batch, generator) -> tuple[Batch, Tensor, Tensor]:
    """Draw what `SobolevObjective.loss` draws, in the same order."""
    s = objective.settings
    keep = objective.disturbance.keep(points.observed, points.exists, generator)
    context, target = objective.disturb(points, keep, generator)
    low, high = sampling.box(points.coords, points.exists)
    return context, target, sampling.dummy_coords(s.dummy_law, low, high, s.dummies, generator)


def _nested_loss(objective: SobolevObjective, points: Batch, sampled, settings: Settings) -> Tensor:
    context, target, dummies = sampled
    network = objective.network
    start = objective.start(context)
    encoded = network.encode(context) if settings.pattern == "context" else None

    def answer(shift: Tensor) -> Tensor:
        at = series.constant(dummies + shift)
        if encoded is not None:
            return network.read(encoded, at, start(at)).value
        return network(context, at, start(at))[1].value

    def derivative(f: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda shift: torch.func.jvp(f, (shift,), (torch.ones_like(shift),))[1]

    if encoded is not None:
        real = series.constant(points.coords)
        at_real = network.read(encoded, real, start(real)).value
    else:
        at = series.constant(dummies)
        at_real = network(context, at, start(at))[0]
    loss = losses.data_term(at_real, target, points.observed, settings.p)
    f: Callable[[Tensor], Tensor] = answer
    zero = torch.zeros(())
    for _ in range(settings.order):
        f = derivative(f)
        loss = loss + MU * f(zero).square().mean()
    return loss


def _textbook_layer_norm(x: Tensor, shape, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    """LayerNorm from plain operations, since torch's own has wrong higher derivatives (seen in 2.13)."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * (centred.square().mean(-1, keepdim=True) + eps).rsqrt() * weight + bias
