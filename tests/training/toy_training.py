"""A small regression problem to run the training loop on, and ways to stop it."""

from __future__ import annotations

import os
import signal

import torch
from torch import nn

from cstformer.training.loop import Run, train
from cstformer.training.settings import Settings
from cstformer.training.state import TrainingState
from cstformer.training.team import Alone

COUNT = 7
STEPS = 12


class Toy:
    """Linear regression of 7 samples with a noisy loss; everything that `train` needs."""

    def __init__(self, **settings):
        self.settings = Settings(**{"steps": STEPS, "batch": 3, "learning_rate": 0.05, "device": "cpu"} | settings)
        torch.manual_seed(5)
        self.network = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4, 1))
        self.x = torch.randn(COUNT, 2)
        self.y = self.x.sum(1, keepdim=True)
        self.seen: list[list[int]] = []
        self.at_step = {}  # step → what to do with its loss

    def loss(self, index, generator):
        step = len(self.seen)
        self.seen.append(index.tolist())
        noise = 0.1 * torch.randn(len(index), 1, generator=generator)
        value = (self.network(self.x[index]) - self.y[index] + noise).square().mean()
        return self.at_step[step](value) if step in self.at_step else value

    def score(self):
        assert not self.network.training
        with torch.no_grad():
            return float((self.network(self.x) - self.y).square().mean())

    def train(self, state=None, **options):
        self.seen = []
        self.report = train(self.network, self.loss, self.score, COUNT, self.settings, state=state, **options)
        return self

    def run(self) -> Run:
        """A run that has not begun."""
        state = TrainingState(self.network, None)
        return Run(state, self.loss, self.score, COUNT, self.settings, Alone(), "adamw")

    def weights(self):
        return {k: v.clone() for k, v in self.network.state_dict().items()}


def same(a, b) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def ctrl_c(value):
    os.kill(os.getpid(), signal.SIGINT)
    return value


class Clock:
    """A clock that only the test moves, in the place of the module `time`."""

    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


def ticking(toy: Toy, clock: Clock, seconds: float) -> Toy:
    """Every step of the toy takes so many seconds."""
    inner = toy.loss

    def loss(index, generator):
        clock.now += seconds
        return inner(index, generator)

    toy.loss = loss
    return toy
