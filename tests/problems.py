"""Problems with a known answer: fields with closed-form partials, and tiny networks to try them on."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from unittest import mock

import torch
from torch import Tensor

from cstformer.data.batch import Batch
from cstformer.network.architecture import Architecture
from cstformer.network.transformer import ContinuousTransformer
from cstformer.starts.curves import make_start
from cstformer.starts.gaussian_process import Kernel
from cstformer.taylor.series import Series

KERNEL = Kernel(lengthscales=(0.3,), amplitude=1.1, offset=0.4, noise=0.1)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


def uniform(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.rand(*shape, generator=generator(seed), dtype=torch.float64).to(dtype)


@dataclass(frozen=True)
class Wave:
    """u(x) = sin(w·x + b): D^q u = w^q · sin(w·x + b + |q| π/2)."""

    w: tuple[float, ...]
    b: float = 0.3

    def partial(self, x: Tensor, q: tuple[int, ...]) -> Tensor:
        phase = x @ x.new_tensor(self.w) + self.b + sum(q) * math.pi / 2
        return math.prod(w**i for w, i in zip(self.w, q, strict=True)) * phase.sin()


@dataclass(frozen=True)
class Polynomial:
    """u(x) = Σ c_a x^a over multi-indices a: D^q u = Σ c_a a!/(a−q)! x^{a−q}."""

    terms: dict[tuple[int, ...], float]

    def partial(self, x: Tensor, q: tuple[int, ...]) -> Tensor:
        total = torch.zeros_like(x[..., 0])
        for powers, c in self.terms.items():
            if all(a >= i for a, i in zip(powers, q, strict=True)):
                factor = math.prod(math.perm(a, i) for a, i in zip(powers, q, strict=True))
                rest = [x[..., k] ** (a - i) for k, (a, i) in enumerate(zip(powers, q, strict=True))]
                total = total + c * factor * math.prod(rest)
        return total

    def on_series(self, x: Series) -> Series:
        """The same polynomial by series arithmetic; x is (J, ..., d)."""
        total = None
        for powers, c in self.terms.items():
            term = Series(torch.full_like(x.coefs[:1, ..., 0], c))
            for k, a in enumerate(powers):
                for _ in range(a):
                    term = term * x.map(lambda t, k=k: t[..., k])
            total = term if total is None else total + term
        return total


def textbook_layer_norm(x: Tensor, shape, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight + bias


def nested_derivatives(f: Callable[[Tensor], Tensor], d: int, order: int) -> list[Tensor]:
    """f and its derivatives at s = 0 ∈ R^d by nesting autograd: item j has shape (..., d, …, d), j times d.

    torch's own LayerNorm is replaced meanwhile: its third reverse-mode and second forward-mode derivatives
    are wrong (torch 2.13; they disagree with finite differences and with the textbook formula).
    """

    def one_more(known):
        def deeper(s: Tensor) -> tuple[Tensor, ...]:
            def last_and_all(s):
                everything = known(s)
                return everything[-1], everything

            if d == 1:
                _, slope, everything = torch.func.jvp(last_and_all, (s,), (torch.ones_like(s),), has_aux=True)
                return (*everything, slope[..., None])
            slope, everything = torch.func.jacfwd(last_and_all, has_aux=True)(s)
            return (*everything, slope)

        return deeper

    known = lambda s: (f(s),)  # noqa: E731
    for _ in range(order):
        known = one_more(known)
    with mock.patch.object(torch.nn.functional, "layer_norm", textbook_layer_norm):
        return [x.detach() for x in known(torch.zeros(d, dtype=torch.float64))]


def entry(derivatives: list[Tensor], q: tuple[int, ...]) -> Tensor:
    """D^q from the full derivative tensors of `nested_derivatives`."""
    axes = [axis for axis, i in enumerate(q) for _ in range(i)]
    return derivatives[sum(q)][(..., *axes)] if axes else derivatives[0]


def relative_error(a: Tensor, b: Tensor) -> float:
    """max |a − b| / max |b|; the reference must not be zero everywhere."""
    assert a.shape == b.shape
    a, b = a.detach(), b.detach()
    size = float(b.abs().max())
    assert size > 1e-6, "a trivial reference proves nothing"
    return float((a - b).abs().max()) / size


def tiny_network(
    d: int = 1, c: int = 2, dtype: torch.dtype = torch.float64, seed: int = 0, **changes
) -> ContinuousTransformer:
    """A small network none of whose parameters is zero."""
    sizes = dict(width=8, layers=2, heads=2, feedforward=12, features=4, frequency=0.5, landmarks=3)
    torch.manual_seed(seed)
    network = ContinuousTransformer(Architecture(d=d, c=c, **(sizes | changes))).to(torch.float64)
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return network.to(dtype)


def tiny_context(
    d: int = 1, c: int = 2, n: int = 6, batch: int = 2, dtype: torch.dtype = torch.float64, seed: int = 0
) -> Batch:
    """Irregular points; the last point of sample 1 is padding, and one channel of one point is missing."""
    coords = uniform(batch, n, d, seed=seed)
    if d == 1:  # keep the knots apart
        coords = (torch.arange(n)[None, :, None] + 0.7 * coords) / n
    observed = torch.ones(batch, n, c, dtype=torch.bool)
    if batch > 1:
        observed[1, -1] = False
    if c > 1:
        observed[0, 2, 1] = False
    return Batch(coords.to(dtype), normal(batch, n, c, seed=seed + 1, dtype=dtype), observed)


def start_of(kind: str, context: Batch) -> Callable[[Series], Series]:
    kernel = Kernel(KERNEL.lengthscales * context.coords.shape[-1], KERNEL.amplitude, KERNEL.offset, KERNEL.noise)
    return make_start(kind, context.coords, context.values, context.observed, kernel)
