"""LatentODE: the solver against closed forms and its order, the posterior, the loss."""

import math

import numpy as np
import pytest
import torch
from problems import generator, normal, uniform
from torch import nn

from cstformer.baselines import LatentODE
from cstformer.baselines.latent_ode import SPAN, LatentODENetwork, solve
from cstformer.baselines.sequences import TimeSeries
from cstformer.baselines.variational import draw, gaussian_kl
from cstformer.data.samples import Samples


class Linear(nn.Module):
    """ż = z Aᵀ."""

    def __init__(self, matrix):
        super().__init__()
        self.matrix = matrix

    def forward(self, z):
        return z @ self.matrix.T


ROTATION = torch.tensor([[-0.3, 4.0], [-4.0, -0.3]], dtype=torch.float64)


def exact(z0, at):
    """z(t) = exp(A t) z0."""
    return torch.einsum("bmij,bj->bmi", torch.matrix_exp(at[..., None, None] * ROTATION), z0)


def frames(batch=3, T=5, c=2, seed=0):
    """Irregular times; the last two frames of sample 1 are padding and one value of sample 0 is missing."""
    times = uniform(batch, T, seed=seed).sort(1).values
    exists = torch.ones(batch, T, dtype=torch.bool)
    exists[1, -2:] = False
    times[1, -2:] = times[1, -3]
    observed = exists[..., None].expand(-1, -1, c).clone()
    observed[0, 1, 0] = False
    return TimeSeries(times, normal(batch, T, c, seed=seed + 1) * observed, observed, exists)


def test_solution_of_a_linear_equation_and_its_order():
    z0, at = normal(3, 2), uniform(3, 17, seed=1)
    errors = [float((solve(Linear(ROTATION), z0, at, n) - exact(z0, at)).abs().max()) for n in (16, 32, 64)]
    assert errors[-1] < 1e-5
    orders = np.log2(np.divide(errors[:-1], errors[1:]))
    assert ((orders > 3.6) & (orders < 4.6)).all()


def test_before_and_after_the_domain():
    z0 = normal(2, 2)
    at = torch.tensor([[-0.7, 1.6], [-0.05, 0.4]], dtype=torch.float64)
    torch.testing.assert_close(solve(Linear(ROTATION), z0, at, 80), exact(z0, at), rtol=0, atol=2e-5)
    far = solve(Linear(ROTATION), z0, torch.tensor([[-9.0, 9.0], [-1.0, 2.0]], dtype=torch.float64), 20)
    torch.testing.assert_close(far, solve(Linear(ROTATION), z0, torch.tensor([[-1.0, 2.0]] * 2).double(), 20))


def test_an_answer_does_not_depend_on_the_other_queries():
    z0, at = normal(2, 2), uniform(2, 5, seed=2)
    alone = torch.cat([solve(Linear(ROTATION), z0, t, 10) for t in at.split(1, 1)], 1)
    company = torch.cat([at, torch.full((2, 1), 1.7).double()], 1)
    torch.testing.assert_close(solve(Linear(ROTATION), z0, company, 10)[:, :5], alone)


def test_divergence_is_the_integral_of_its_definition():
    mean, log_variance, prior_mean, prior_log_variance = torch.tensor([0.7, -0.4, -0.2, 0.9]).double()
    x = torch.linspace(-12, 12, 200_001, dtype=torch.float64)

    def log_density(m, v):
        return -0.5 * ((x - m).square() / v.exp() + v + math.log(2 * math.pi))

    q, p = log_density(mean, log_variance), log_density(prior_mean, prior_log_variance)
    by_hand = torch.trapezoid(q.exp() * (q - p), x)
    torch.testing.assert_close(gaussian_kl(mean, log_variance, prior_mean, prior_log_variance), by_hand)
    # and the textbook's case
    textbook = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance)
    zero = torch.zeros_like(mean)
    torch.testing.assert_close(gaussian_kl(mean, log_variance, zero, zero), textbook)


def test_draws_have_the_mean_and_the_variance():
    mean, log_variance = torch.tensor([2.0, -1.0]).double(), torch.tensor([0.5, -2.0]).double()
    x = draw(mean.expand(40_000, 2), log_variance, generator(0))
    assert torch.allclose(x.mean(0), mean, atol=0.03)
    assert torch.allclose(x.var(0), log_variance.exp(), rtol=0.03)
    assert draw(mean, log_variance, None) is mean


def network(mask=True, **sizes):
    torch.manual_seed(0)
    sizes = dict(latent=2, encoder=4, hidden=5, steps=12) | sizes
    return LatentODENetwork((2,), **sizes, mask=mask).double()


def test_posterior_by_hand():
    """From the last exists frame to the first: h ← tanh(W [x, observed, gap, h] + b)."""
    net, f = network(), frames()
    mean, log_variance = net.posterior(f)
    for i in range(3):
        h = torch.zeros(4, dtype=torch.float64)
        for j in reversed(range(int(f.counts[i]))):
            gap = f.times[i, j] - (f.times[i, j - 1] if j else 0)
            x = torch.cat([f.values[i, j], f.observed[i, j].double(), gap[None], h])
            h = torch.tanh(net.cell.weight @ x + net.cell.bias)
        expected = net.posterior_layer(h)
        torch.testing.assert_close(torch.cat([mean[i], log_variance[i]]), expected)


def test_hand_set_dynamics_rotate_the_frames():
    """Linear dynamics through ELUs that stay in their linear part, and a decoder that reads the state."""
    net = network(hidden=4)
    eye, push = torch.eye(2, dtype=torch.float64), 50.0
    with torch.no_grad():
        for p in (*net.dynamics.parameters(), *net.decoder.parameters()):
            p.zero_()
        for first, last, matrix in (
            (net.dynamics[0], net.dynamics[4], ROTATION / SPAN),
            (net.decoder[0], net.decoder[2], eye),
        ):
            first.weight[:2], last.weight[:, :2] = eye, matrix
            first.bias[:2], last.bias[:] = push, -push * matrix.sum(1)
        net.dynamics[2].weight[:] = torch.eye(4)
    f, at = frames(), uniform(3, 6, seed=5)
    z0 = net.posterior(f)[0]
    net.steps = 100
    torch.testing.assert_close(net(f, at), exact(z0, at), rtol=0, atol=1e-5)
    torch.testing.assert_close(net.latent(f), exact(z0, f.times[:, -1:])[:, 0], rtol=0, atol=1e-5)


def test_loss_is_the_evidence_lower_bound_by_hand():
    model = LatentODE(observation_noise=0.3, anneal=0.5, steps=8)
    model.network_, f = network(), frames()
    net, target = model.network_, normal(3, 5, 2, seed=9)
    weights = []
    for _ in range(6):
        answers, divergence = net.sample(f, f.times, generator(4))
        error = (answers - target)[f.observed].square().mean()
        loss = model._error(f, f.times, target, f.observed, generator(4))
        full = 2 * 0.3**2 * divergence.sum() / f.observed.sum()
        weights.append(((loss - error) / full).item())
    assert weights == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1])
    mean, log_variance = net.posterior(f)
    expected = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).sum(1)
    torch.testing.assert_close(divergence, expected)


def test_learns_damped_oscillations_between_and_beyond_the_points():
    """Irregular samples of ż = A z: it must do better than straight lines, and continue the curves."""
    rng = np.random.default_rng(0)
    z0, t = rng.normal(size=(64, 2)), np.sort(rng.uniform(0, 1, (64, 7)), axis=1)
    t[:, 0], t[:, -1] = 0, 1
    u = lambda t: exact(torch.as_tensor(z0), torch.as_tensor(t)).numpy()  # noqa: E731
    settings = dict(steps=120, learning_rate=2e-2, batch=32, encoder=32, ode_steps=6, noise=0.0)
    model = LatentODE.preset("smoke", **settings).fit(Samples(t, u(t)))
    at = np.linspace(0, 1, 30)
    error = np.sqrt(np.mean((model.predict(Samples(t, u(t)), at) - u(np.tile(at, (64, 1)))) ** 2))
    early = Samples(t[:, :-1], u(t[:, :-1]))  # the last point is not given
    ahead = np.sqrt(np.mean((model.predict(early, [1.0]) - u(np.ones((64, 1)))) ** 2))
    assert error < 0.35 and ahead < 0.4  # the values have a standard deviation of 0.83


def test_paper_preset_has_the_papers_size():
    """2,528,322 + 173 L in the paper's table (2.5 M); ours has one more input, the time between frames."""
    with torch.device("meta"):
        net = LatentODENetwork((184, 208, 1), 20, 25, 40, 20, mask=False)
    assert sum(p.numel() for p in net.parameters()) == 2_528_322 + 173 * 20 + 25
    model = LatentODE.preset("paper")
    assert (model.latent_size, model.encoder, model.hidden, model.mask) == (20, 25, 40, False)
