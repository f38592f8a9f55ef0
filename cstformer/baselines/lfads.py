r"""LFADS (Pandarinath et al. 2018): latent factor analysis via dynamical systems, a sequential autoencoder.

A generator, a recurrent network with initial state g₀ and inferred inputs u_t, produces all frames ŷ_t through a few
factors f_t:

.. math:: c_t = \mathrm{GRU}([e_t, f_{t-1}], c_{t-1}), \quad u_t \sim q(u_t \mid c_t), \quad
          g_t = \mathrm{GRU}(u_t, g_{t-1}), \quad f_t = W g_t, \quad \hat y_t = R f_t + b

Two bidirectional encoders read the frames: the last states of one give the posterior of g₀, the states e_t of the other
feed the controller c_t. The prior of g₀ is N(0, 0.1). The prior of u is autoregressive with learned time constant and
variance; here it is the Ornstein–Uhlenbeck process, which generalises it to irregular times.

This is written from the published description. It departs from it in two points: the likelihood is Gaussian, because
ΔF/F and the other data here are not spike counts; and encoders and generator also read the time since the previous
frame.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from cstformer.baselines.sequences import TimeSeries, between
from cstformer.baselines.variational import VariationalBaseline, VariationalNetwork, draw, gaussian_kl, posterior_layer
from cstformer.training.settings import setting

INITIAL_VARIANCE = 0.1  # prior variance of g₀, and initial value of the learned prior variance of u


@dataclass(frozen=True)
class Sizes:
    """Numbers of units; see the settings of `LFADS`."""

    initial_encoder: int = 200
    controller_encoder: int = 128
    controller: int = 128
    generator: int = 200
    factors: int = 100
    inputs: int = 1


class BidirectionalGRU(nn.Module):
    """Two gated recurrent networks that read the frames forwards and backwards and skip padding."""

    def __init__(self, inputs: int, units: int):
        super().__init__()
        self.forwards, self.backwards = nn.GRUCell(inputs, units), nn.GRUCell(inputs, units)

    def forward(self, x: Float[Tensor, "B T inputs"], exists: Tensor) -> tuple[Tensor, Tensor]:
        """States at all frames (B, T, 2·units), and the last states of both directions (B, 2·units)."""
        states, ends = [], []
        for cell, backwards in ((self.forwards, False), (self.backwards, True)):
            h, path = x.new_zeros(len(x), cell.hidden_size), []
            for i in reversed(range(x.shape[1])) if backwards else range(x.shape[1]):
                h = torch.where(exists[:, i, None], cell(x[:, i], h), h)
                path.append(h)
            states.append(torch.stack(path[::-1] if backwards else path, 1))
            ends.append(h)
        return torch.cat(states, -1), torch.cat(ends, -1)


class LFADSNetwork(VariationalNetwork):
    """Encoders, controller, generator, factors and read-out."""

    between: str = "linear"

    def __init__(self, shape: tuple[int, ...], s: Sizes, mask: bool):
        super().__init__()
        self.shape, self.mask = shape, mask
        values = math.prod(shape)
        given = values * (2 if mask else 1) + 1
        self.initial_encoder = BidirectionalGRU(given, s.initial_encoder)
        self.controller_encoder = BidirectionalGRU(given, s.controller_encoder)
        self.initial_posterior = posterior_layer(2 * s.initial_encoder, s.generator)
        self.controller = nn.GRUCell(2 * s.controller_encoder + s.factors, s.controller)
        self.input_posterior = posterior_layer(s.controller, s.inputs)
        self.generator = nn.GRUCell(s.inputs + 1, s.generator)
        self.factors = nn.Linear(s.generator, s.factors, bias=False)
        self.read_out = nn.Linear(s.factors, values)
        self.prior_log_variance = nn.Parameter(torch.full((s.inputs,), math.log(INITIAL_VARIANCE)))
        self.prior_log_time = nn.Parameter(torch.full((s.inputs,), math.log(0.1)))  # a tenth of the time domain

    def run(
        self, frames: TimeSeries, generator: Generator | None
    ) -> tuple[Float[Tensor, "B T factors"], Float[Tensor, " B"]]:
        """Factors at all frames, and KL divergence of the posteriors of g₀ and u from their priors."""
        gap, x = frames.gaps[..., None], frames.values.flatten(2)
        x = torch.cat([x, frames.observed.flatten(2).to(x), gap] if self.mask else [x, gap], -1)
        encoded, _ = self.controller_encoder(x, frames.exists)
        mean, log_variance = self.initial_posterior(self.initial_encoder(x, frames.exists)[1]).chunk(2, -1)
        prior = mean.new_tensor(math.log(INITIAL_VARIANCE))
        divergence = gaussian_kl(mean, log_variance, torch.zeros_like(mean), prior).sum(-1)

        g = draw(mean, log_variance, generator)
        c = x.new_zeros(len(x), self.controller.hidden_size)
        f, u = self.factors(g), None
        path = []
        for i in range(x.shape[1]):
            exists = frames.exists[:, i, None]
            c = torch.where(exists, self.controller(torch.cat([encoded[:, i], f], -1), c), c)
            mean, log_variance = self.input_posterior(c).chunk(2, -1)
            prior_mean, prior = self.input_prior(u, gap[:, i])
            divergence = divergence + (gaussian_kl(mean, log_variance, prior_mean, prior) * exists).sum(-1)
            u = draw(mean, log_variance, generator)
            g = torch.where(exists, self.generator(torch.cat([u, gap[:, i]], -1), g), g)
            f = self.factors(g)
            path.append(f)
        return torch.stack(path, 1), divergence

    def input_prior(self, before: Tensor | None, gap: Float[Tensor, "B 1"]) -> tuple[Tensor, Tensor]:
        """Prior mean and log-variance (B, inputs) of the next input, given the input ``before`` at time −``gap``.

        The Ornstein–Uhlenbeck process with time constant τ and variance v has mean e^{−gap/τ} · before and variance
        v (1 − e^{−2 gap/τ}).
        """
        variance = self.prior_log_variance.expand(len(gap), -1)
        if before is None:
            return torch.zeros_like(variance), variance
        decay = -gap * (-self.prior_log_time).exp()
        return decay.exp() * before, variance + (-torch.expm1(2 * decay)).clamp_min(1e-4).log()

    def sample(
        self, frames: TimeSeries, at: Float[Tensor, "B M"], generator: Generator | None
    ) -> tuple[Float[Tensor, "B M *S"], Float[Tensor, " B"]]:
        """Run, then interpolate the factors in time. The read-out is affine, so this interpolates the frames."""
        factors, divergence = self.run(frames, generator)
        return self.read_out(between(self.between, frames, factors, at)).unflatten(-1, self.shape), divergence

    def latent(self, frames: TimeSeries) -> Float[Tensor, "B factors"]:
        """Factors at the last frame, whose label the calcium experiment decodes."""
        return self.run(frames, None)[0][:, -1]


@dataclass(kw_only=True, eq=False, repr=False)
class LFADS(VariationalBaseline):
    """Sequential variational autoencoder with inferred inputs; all settings are keyword arguments."""

    name: ClassVar[str] = "lfads"
    label: ClassVar[str] = "LFADS"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "default": {},
        "smoke": {
            "initial_encoder": 16,
            "controller_encoder": 8,
            "controller": 8,
            "generator": 24,
            "factors": 12,
            "noise": 0.0,
            "steps": 30,
            "batch": 8,
        },
        "paper": {
            "initial_encoder": 200,
            "controller_encoder": 128,
            "controller": 128,
            "generator": 200,
            "factors": 100,
            "mask": False,
            "noise": 0.1,
            "hide": 0.0,
            "learning_rate": 1e-3,
        },
    }

    initial_encoder: int = setting(64, "units of each direction of the encoder of the initial state", low=1)
    controller_encoder: int = setting(32, "units of each direction of the encoder of the controller", low=1)
    controller: int = setting(32, "units of the controller", low=1)
    generator: int = setting(64, "units of the generator", low=1)
    factors: int = setting(40, "factors from which frames are read out", low=1)
    inputs: int = setting(1, "inferred inputs at each time", low=1)
    hide: float = setting(0.2, "largest fraction of a sample's frames hidden per step", low=0, high=0.95)
    between: str = setting("linear", "interpolation in time between context frames", ("linear", "cubic"))
    learning_rate: float = setting(5e-3, "peak learning rate of AdamW", low=0)

    def _network(self, d: int, c: int) -> LFADSNetwork:
        sizes = Sizes(**{f.name: getattr(self, f.name) for f in dataclasses.fields(Sizes)})
        network = LFADSNetwork(self.frame_shape(c), sizes, self.mask)
        network.between = self.between
        return network
