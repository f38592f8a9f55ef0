r"""LatentODE (Chen et al. 2018, Rubanova et al. 2019): a latent state that follows a learned differential equation.

A recurrent encoder reads the frames from the last to the first, with the times between them, and returns the posterior
q of the state z at time 0, the start of the domain. The state follows

.. math:: \dot z = f(z), \qquad z(0) \sim q

and a decoder maps z(t) to the frame at any time t. Frames of movies are flattened.

torchdiffeq solves the equation with the fourth-order Runge–Kutta method on a fixed grid over the domain. Between grid
points, cubic Hermite interpolation of z and f(z) is of fourth order too. Samples with different times thus share one
solve, and an answer depends neither on the other queries nor on the other samples, as it would with adaptive steps. The
solution extends one domain length beyond either end of the domain and is constant farther out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from cstformer.baselines.sequences import TimeSeries
from cstformer.baselines.variational import VariationalBaseline, VariationalNetwork, draw, gaussian_kl, posterior_layer
from cstformer.errors import CSTError
from cstformer.training.settings import setting

SPAN = 3.0  # time of the equation over the domain: with weights of order 1 it holds half an oscillation


class Dynamics(nn.Sequential):
    """The right-hand side f: three linear layers."""

    def __init__(self, latent: int, hidden: int):
        layers = (nn.Linear(latent, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(), nn.Linear(hidden, latent))
        super().__init__(*layers)

    def forward(self, z: Float[Tensor, "... L"]) -> Float[Tensor, "... L"]:
        """Rate of change of the state per unit of the domain."""
        return SPAN * super().forward(z)


def solve(
    f: nn.Module, z0: Float[Tensor, "B L"], at: Float[Tensor, "B M"], steps: int, beyond: float = 1.0
) -> Float[Tensor, "B M L"]:
    """Solve ż = f(z), z(0) = z0, at the times ``at`` of each sample, with ``steps`` steps over [0, 1].

    Times are clamped to [−``beyond``, 1 + ``beyond``].

    >>> class Growth(nn.Module):
    ...     def forward(self, z):
    ...         return z
    >>> z = solve(Growth(), torch.ones(1, 1), torch.tensor([[0.5, 1.0]]), steps=20)
    >>> z.flatten().log().round(decimals=4).tolist()
    [0.5, 1.0]
    """
    try:
        from torchdiffeq import odeint
    except ImportError:
        raise CSTError('LatentODE needs torchdiffeq; pip install "cstformer[rivals]"') from None
    at = at.clamp(-beyond, 1 + beyond)
    after = max(1, math.ceil(float(at.max()) * steps))
    before = max(0, math.ceil(-float(at.min()) * steps))

    def states(first: int, last: int) -> Tensor:
        sign = 1 if last > first else -1
        grid = torch.arange(first, last + sign, sign, device=z0.device).to(z0) / steps
        return odeint(lambda _, z: f(z), z0, grid, method="rk4")

    z = states(0, after)  # (grid, B, L)
    if before:
        z = torch.cat([states(0, -before).flip(0)[:-1], z])
    slope = f(z) / steps
    # Cubic Hermite interpolation between grid points a and b: s ∈ [0, 1] is the position within the interval.
    place = at * steps + before
    left = place.floor().long().clamp(0, len(z) - 2)
    s = (place - left)[..., None]  # (B, M, 1)
    row = torch.arange(len(z0), device=z0.device)[:, None]
    a, b, da, db = z[left, row], z[left + 1, row], slope[left, row], slope[left + 1, row]
    bend = (da - (b - a)) * (1 - s) - (db - (b - a)) * s
    return a + s * (b - a) + s * (1 - s) * bend


class LatentODENetwork(VariationalNetwork):
    """Recurrent encoder that reads backwards in time, differential equation, decoder."""

    def __init__(self, shape: tuple[int, ...], latent: int, encoder: int, hidden: int, steps: int, mask: bool):
        super().__init__()
        self.shape, self.steps, self.mask = shape, steps, mask
        values = math.prod(shape)
        self.cell = nn.Linear(values * (2 if mask else 1) + 1 + encoder, encoder)
        self.posterior_layer = posterior_layer(encoder, latent)
        self.dynamics = Dynamics(latent, hidden)
        self.decoder = nn.Sequential(nn.Linear(latent, hidden), nn.ReLU(), nn.Linear(hidden, values))

    def posterior(self, frames: TimeSeries) -> tuple[Float[Tensor, "B L"], Float[Tensor, "B L"]]:
        """Mean and log-variance of the state at time 0."""
        x = frames.values.flatten(2)
        # Time from each frame back to the previous one, and from the first frame back to time 0.
        gap = torch.cat([frames.times[:, :1], frames.gaps[:, 1:]], 1)[..., None]
        x = torch.cat([x, frames.observed.flatten(2).to(x), gap] if self.mask else [x, gap], -1)
        h = x.new_zeros(len(x), self.cell.out_features)
        for i in reversed(range(x.shape[1])):
            step = torch.tanh(self.cell(torch.cat([x[:, i], h], -1)))
            h = torch.where(frames.exists[:, i, None], step, h)
        mean, log_variance = self.posterior_layer(h).chunk(2, -1)
        return mean, log_variance

    def sample(
        self, frames: TimeSeries, at: Float[Tensor, "B M"], generator: Generator | None
    ) -> tuple[Float[Tensor, "B M *S"], Float[Tensor, " B"]]:
        """Draw the state at time 0, solve, decode."""
        mean, log_variance = self.posterior(frames)
        z = solve(self.dynamics, draw(mean, log_variance, generator), at, self.steps)
        zero = torch.zeros_like(mean)
        return self.decoder(z).unflatten(-1, self.shape), gaussian_kl(mean, log_variance, zero, zero).sum(-1)

    def latent(self, frames: TimeSeries) -> Float[Tensor, "B L"]:
        """State at the last frame, whose label the calcium experiment decodes, from the posterior mean."""
        return solve(self.dynamics, self.posterior(frames)[0], frames.times[:, -1:], self.steps)[:, 0]


@dataclass(kw_only=True, eq=False, repr=False)
class LatentODE(VariationalBaseline):
    """Latent differential equation with a recurrent encoder; all settings are keyword arguments."""

    name: ClassVar[str] = "latent-ode"
    needs: ClassVar[tuple[str, ...]] = ("torchdiffeq",)
    label: ClassVar[str] = "LatentODE"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {"latent_size": 6, "hidden": 20, "ode_steps": 8, "noise": 0.0, "steps": 30, "batch": 8},
        # The published sizes. The paper does not give the latent size, which hardly changes the count.
        "paper": {
            "latent_size": 20,
            "encoder": 25,
            "hidden": 40,
            "mask": False,
            "noise": 0.1,
            "hide": 0.0,
            "learning_rate": 1e-3,
        },
    }

    latent_size: int = setting(20, "size of the latent state", low=1)
    encoder: int = setting(64, "hidden units of the recurrent encoder", low=1)
    hidden: int = setting(64, "hidden units of the differential equation and of the decoder", low=1)
    hide: float = setting(0.2, "largest fraction of a sample's frames hidden per step", low=0, high=0.95)
    ode_steps: int = setting(20, "Runge–Kutta steps over the time domain", low=1)
    learning_rate: float = setting(5e-3, "peak learning rate of AdamW", low=0)

    def _network(self, d: int, c: int) -> LatentODENetwork:
        sizes = (self.latent_size, self.encoder, self.hidden, self.ode_steps)
        return LatentODENetwork(self.frame_shape(c), *sizes, self.mask)
