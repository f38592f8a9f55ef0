r"""Base of the variational sequence models: Gaussian posteriors and the loss.

Multiplied by −2σ²/n and without its constant, the evidence lower bound under Gaussian noise of standard deviation σ is

.. math:: \text{mean squared error} + \beta \, \frac{2 \sigma^2}{n} \, \mathrm{KL}(q \,\|\, p)

where n is the number of observed values in the batch. β rises from 0 to 1 over the first steps (KL annealing), because
the KL term would otherwise switch the latent off before the decoder uses it. Predictions use the posterior means.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from cstformer.baselines.sequences import SequenceBaseline, TimeSeries
from cstformer.training.losses import data_term
from cstformer.training.settings import setting


def gaussian_kl(mean: Tensor, log_variance: Tensor, prior_mean: Tensor, prior_log_variance: Tensor) -> Tensor:
    """Elementwise KL divergence of the Gaussian N(mean, e^log_variance) from the Gaussian prior.

    >>> one = torch.tensor(1.0)
    >>> float(gaussian_kl(one, 0 * one, 0 * one, 0 * one))
    0.5
    """
    ratio = (log_variance - prior_log_variance).exp()
    distance = (mean - prior_mean).square() * (-prior_log_variance).exp()
    return 0.5 * (ratio + distance - 1 - (log_variance - prior_log_variance))


def draw(mean: Tensor, log_variance: Tensor, generator: Generator | None) -> Tensor:
    """Draw from a Gaussian by the reparametrisation trick; return its mean if there is no generator."""
    if generator is None:
        return mean
    noise = torch.randn(mean.shape, generator=generator, dtype=torch.float64).to(mean)
    return mean + (0.5 * log_variance).exp() * noise


def posterior_layer(inputs: int, size: int) -> nn.Linear:
    """Linear layer to mean and log-variance of ``size`` numbers.

    It starts with a small variance, e⁻⁴, so that the latent carries information from the first step on.

    >>> mean, log_variance = posterior_layer(3, 2)(torch.zeros(3)).chunk(2)
    >>> log_variance.tolist()
    [-4.0, -4.0]
    """
    layer = nn.Linear(inputs, 2 * size)
    nn.init.constant_(layer.bias[size:], -4.0)
    return layer


class VariationalNetwork(nn.Module):
    """A network with a posterior. It counts its training steps in ``seen``, for the annealing."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    @abstractmethod
    def sample(
        self, frames: TimeSeries, at: Float[Tensor, "B M"], generator: Generator | None
    ) -> tuple[Float[Tensor, "B M *S"], Float[Tensor, " B"]]:
        """Frames at times ``at`` from a draw of the posterior, and the KL divergence of each sample's posterior."""

    def forward(self, frames: TimeSeries, at: Float[Tensor, "B M"]) -> Float[Tensor, "B M *S"]:
        """Frames at times ``at`` from the posterior means."""
        return self.sample(frames, at, None)[0]


@dataclass(kw_only=True, eq=False, repr=False)
class VariationalBaseline(SequenceBaseline):
    """A sequence model trained with the evidence lower bound."""

    observation_noise: float = setting(0.1, "sd σ of the Gaussian likelihood, in units of the values' sd", low=1e-6)
    anneal: float = setting(0.2, "fraction of the steps over which the weight of the KL term rises to 1", low=0, high=1)

    def _error(self, shown: TimeSeries, at: Tensor, target: Tensor, observed: Tensor, generator: Generator) -> Tensor:
        network = self.network_
        assert isinstance(network, VariationalNetwork)
        answers, divergence = network.sample(shown, at, generator)
        rise = self.anneal * self.steps
        weight = min(1.0, float(network.seen) / rise) if rise > 0 else 1.0
        network.seen += 1
        scale = 2 * self.observation_noise**2 / observed.sum().clamp_min(1)
        return data_term(answers, target, observed, 2.0, self.channel_weights) + weight * scale * divergence.sum()
