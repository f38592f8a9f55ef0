r"""What a training costs: multiplications, memory and traffic of a step, counted from its sizes.

A multiplication and an addition are two operations (FLOPs), and backward takes twice those of forward. With width w,
feed-forward width f, L layers, n observed points, m queries and J Taylor coefficients a query, forward takes, for one
sample, about

.. math:: L\,\bigl[\,n (8 w^2 + 4 w f) + 4 n^2 w + m J (4 w^2 + 4 w f) + 4 m J n w\,\bigr]

in pattern ``context``; in ``joint`` all n + m tokens carry J coefficients and read each other. Only matrix products
count: they take most of the time of all but the smallest networks. Starts are not included.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from cstformer.network.transformer import Architecture
from cstformer.taylor.derivatives import plan, up_to
from cstformer.training.objective import MAX_QUERIES
from cstformer.training.settings import Settings

BYTES = 4  # of a number in single precision
HELD = 1.35 * BYTES  # of a number kept for backward, with what backward holds for a moment
COPIES = 6  # of the weights: themselves, gradients, two moments of AdamW, running average, the best so far


@dataclass(frozen=True)
class Workload:
    """A training step of one sample."""

    architecture: Architecture
    points: int
    """Observed points of a sample."""
    dummies: int
    order: int
    sobolev_every: int = 1
    hidden: bool = True
    """Whether some of the points are hidden; in ``joint`` they are then asked for beside the visible ones."""

    @classmethod
    def of(cls, architecture: Architecture, points: int, settings: Settings) -> Workload:
        """The step that these settings make."""
        every = 1 if settings.root or math.isinf(settings.p) else settings.sobolev_every
        order = settings.order if settings.dummies else 0
        return cls(architecture, points, settings.dummies, order, every, settings.hide > 0)

    def coefficients(self, order: int) -> int:
        """Taylor coefficients of a query: 1 + order × directions."""
        d = self.architecture.d
        return 1 + order * len(plan(d, up_to(d, order)).directions) if order else 1

    def flops(self) -> float:
        """Operations of a step, forward and backward: the mean of steps with and without the Sobolev term."""
        share = 1 / self.sobolev_every if self.order else 0.0
        return 3 * (share * self.forward(self.order) + (1 - share) * self.forward(0))

    def forward(self, order: int) -> float:
        """Operations of the forward pass of a step that takes derivatives to this order."""
        a = self.architecture
        if a.pattern == "joint":
            tokens = self.points * (2 if self.hidden else 1) + self.dummies
            carried = tokens * self.coefficients(order)
            reading = self._reading(tokens, order)
            return a.layers * (carried * (self._reader() + 4 * a.width**2) + reading) + self._ends(carried, self.points)
        n, asked = self.points, self._asked(order)
        encode = a.layers * n * 4 * a.width**2 + (a.layers - 1) * (n * self._reader() + self._reading(n, 0))
        read = a.layers * asked * (self._reader() + 4 * n * a.width)
        return encode + read + self._ends(asked, n)

    def activations(self, order: int) -> float:
        """Bytes that a step holds besides the weights, to a factor of two.

        Exponentials of attention are not held beyond 256 MB a layer, nor where a fused kernel takes over.
        """
        a = self.architecture
        token, key = 6 * a.width + 2 * a.feedforward, 2 * a.width
        keys = self.points if a.pattern == "context" else self.points * (2 if self.hidden else 1) + self.dummies
        keys = keys if a.attention_kind == "exact" else 6 * a.landmarks
        if a.pattern == "joint":
            tokens = self.points * (2 if self.hidden else 1) + self.dummies
            return HELD * a.layers * tokens * self.coefficients(order) * (token + key + a.heads * keys)
        seen = a.layers * key + (a.layers - 1) * (token + a.heads * keys)
        return HELD * (self.points * seen + a.layers * self._asked(order) * (token + a.heads * self.points))

    def _reader(self) -> float:
        """Operations of a token in a layer, apart from keys, values and attention itself."""
        a = self.architecture
        return 2 * a.width**2 * (1 + a.projections) + 4 * a.width * a.feedforward

    def _asked(self, order: int) -> int:
        """Coefficients of all queries of a step in pattern ``context``."""
        return min(self.points, MAX_QUERIES) + (self.dummies * self.coefficients(order) if order else 0)

    def _reading(self, tokens: int, order: int) -> float:
        """Operations of attention among so many tokens, exact or through landmarks."""
        a, carried = self.architecture, self.coefficients(order)
        # The product of two series has j + 1 products of coefficients at order j, along each direction.
        products = 1 + (carried - 1) // max(1, order) * sum(j + 1 for j in range(1, order + 1))
        if a.attention_kind == "exact":
            return 4 * tokens**2 * a.width * products
        few = min(a.landmarks, tokens)
        means = 4 * few * tokens * a.width * carried
        inverse = a.iterations * 4 * 2 * few**3 * a.heads
        return means + products * (inverse + (8 * tokens * few + 4 * few**2) * a.width)

    def _ends(self, carried: float, points: int) -> float:
        """Operations of embedding, coordinates and readout."""
        a = self.architecture
        place = 2 * a.features if a.encoding == "fourier" else a.d
        embed = 2 * a.width * (a.c + place)
        head = 2 * a.width**2 if a.norm == "post" else 0
        skip = 2 * a.c**2 if a.readout == "skip" else 0
        return (carried + points) * embed + points * 2 * a.width * a.c + carried * (2 * a.width * a.c + head + skip)


def memory_bytes(parameters: int, processes: int = 1, strategy: str = "ddp") -> float:
    """Bytes of weights, gradients, moments and averages in one process; activations come on top.

    >>> memory_bytes(1000), memory_bytes(1000, 4, "fsdp")
    (24000.0, 6000.0)
    """
    return BYTES * COPIES * parameters / (processes if strategy == "fsdp" else 1)


def traffic_bytes(parameters: int, processes: int) -> float:
    """Bytes that a process sends in a step: a sum over all processes (ddp), or a gathering and a sum of parts (fsdp).

    >>> traffic_bytes(1000, 1), traffic_bytes(1000, 2)
    (0.0, 4000.0)
    """
    return 2 * BYTES * parameters * (processes - 1) / processes
