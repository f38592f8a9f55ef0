import numpy as np
import pytest
import torch

from cstformer.starts import coupled_fit
from cstformer.starts.coupled import JITTER, Cells, CoupledKernel, CoupledMean, CoupledSpread
from cstformer.starts.curves import make_start
from cstformer.starts.gaussian_process import Kernel
from cstformer.taylor import series

LENGTHS = torch.tensor([[0.1], [0.6]], dtype=torch.float64)


def mixed(seed=0, channels=3):
    random = torch.randn(3, channels, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return random @ random.mT + 0.1 * torch.eye(channels, dtype=torch.float64)


def a_kernel(smoothness=1.5):
    return CoupledKernel(LENGTHS, mixed(), torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), smoothness)


def a_batch(samples=3, n=7, channels=3):
    generator = torch.Generator().manual_seed(5)
    coords = torch.rand(samples, n, 1, generator=generator, dtype=torch.float64).sort(1).values
    values = torch.randn(samples, n, channels, generator=generator, dtype=torch.float64)
    observed = torch.rand(samples, n, channels, generator=generator) < 0.6
    observed[:, 0] = True
    return coords, values * observed, observed


def rho(r, smoothness):
    s = np.sqrt(2 * smoothness) * r if smoothness else r
    polynomial = {0.5: 1.0, 1.5: 1 + s, 2.5: 1 + s + s**2 / 3, None: 1.0}[smoothness]
    return polynomial * np.exp(-s if smoothness else -(s**2) / 2)


def dense(kernel, t, i, u, j):
    """Covariance of cells (t, i) and (u, j), entry by entry."""
    lengths, matrices = kernel.lengthscales[:, 0].numpy(), kernel.matrices.numpy()
    out = np.empty((len(t), len(u)))
    for a in range(len(t)):
        for b in range(len(u)):
            parts = [
                matrices[q, i[a], j[b]] * rho(abs(t[a] - u[b]) / ell, kernel.smoothness)
                for q, ell in enumerate(lengths)
            ]
            out[a, b] = sum(parts) + matrices[-1, i[a], j[b]]
    return out


@pytest.mark.parametrize("smoothness", [None, 0.5, 1.5, 2.5])
def test_mean_and_variance_are_those_of_the_dense_process(smoothness):
    kernel, (coords, values, observed) = a_kernel(smoothness), a_batch()
    x = torch.linspace(0, 1, 5, dtype=torch.float64)[None, :, None].expand(3, -1, -1)
    mean = CoupledMean(kernel, coords, values, observed)(series.constant(x)).value
    variance = CoupledSpread(kernel, coords, observed)(x)
    for b in range(3):
        point, channel = (a.numpy() for a in observed[b].nonzero(as_tuple=True))
        t, y = coords[b, point, 0].numpy(), values[b, point, channel].numpy()
        noisy = dense(kernel, t, channel, t, channel) + np.diag(kernel.noises.numpy()[channel] ** 2 + JITTER)
        for i in range(3):
            u, own = x[b, :, 0].numpy(), np.full(5, i)
            cross = dense(kernel, u, own, t, channel)
            np.testing.assert_allclose(mean[b, :, i], cross @ np.linalg.solve(noisy, y), rtol=1e-8, atol=1e-10)
            prior = np.diag(dense(kernel, u, own, u, own))
            explained = np.einsum("ab,ba->a", cross, np.linalg.solve(noisy, cross.T))
            np.testing.assert_allclose(variance[b, :, i], prior - explained, rtol=1e-6, atol=1e-8)


def test_uncoupled_channels_are_processes_of_their_own():
    coords, values, observed = a_batch()
    diagonal = torch.stack(
        [torch.diag(torch.tensor(v, dtype=torch.float64)) for v in ([1.0, 4.0, 0.25], [0.01, 0.04, 0.09])]
    )
    kernel = CoupledKernel(LENGTHS[1:], diagonal, torch.tensor([0.1, 0.2, 0.3], dtype=torch.float64), 1.5)
    kernels = tuple(Kernel((0.6,), a, b, s, 1.5) for a, b, s in ((1.0, 0.1, 0.1), (2.0, 0.2, 0.2), (0.5, 0.3, 0.3)))
    whole = Kernel((0.6,), 1.0, 0.2, 0.2, 1.5, channels=kernels)
    x = coords[:, :1] + 0.3 * (coords[:, -1:] - coords[:, :1])  # within the observed times of every channel, mostly
    seen = observed.clone()
    seen[:, [0, -1]] = True
    together = CoupledMean(kernel, coords, values, seen)(series.constant(x)).value
    alone = make_start("smooth", coords, values, seen, whole)(series.constant(x)).value
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)


def test_derivatives_of_the_mean_and_their_variance():
    kernel, (coords, values, observed) = a_kernel(2.5), a_batch(1)
    mean = CoupledMean(kernel, coords, values, observed)
    spread = CoupledSpread(kernel, coords, observed)
    x = torch.tensor([[[0.31], [0.77]]], dtype=torch.float64)
    line = series.straight_line(x, torch.ones(1, 1, dtype=torch.float64), 2)
    taylor = mean(line).coefs
    at = lambda t: mean(series.constant(t)).value  # noqa: E731
    h = 1e-4
    slope = (at(x + h) - at(x - h)) / (2 * h)
    bend = (at(x + h) - 2 * at(x) + at(x - h)) / h**2
    np.testing.assert_allclose(taylor[1].reshape(slope.shape), slope, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(2 * taylor[2].reshape(bend.shape), bend, rtol=1e-3, atol=1e-3)
    # The variance of a difference quotient tends to that of the derivative.
    point, channel = (a.numpy() for a in observed[0].nonzero(as_tuple=True))
    t = coords[0, point, 0].numpy()
    noisy = dense(kernel, t, channel, t, channel) + np.diag(kernel.noises.numpy()[channel] ** 2 + JITTER)
    for i in range(3):
        for k, u in enumerate(x[0, :, 0].tolist()):
            pair, own = np.array([u + 1e-3, u - 1e-3]), np.full(2, i)
            cross = dense(kernel, pair, own, t, channel)
            covariance = dense(kernel, pair, own, pair, own) - cross @ np.linalg.solve(noisy, cross.T)
            quotient = (covariance[0, 0] - 2 * covariance[0, 1] + covariance[1, 1]) / 4e-6
            assert float(spread(x, (1,))[0, k, i]) == pytest.approx(quotient, rel=1e-2)


def test_the_gradient_of_the_fit_is_that_of_the_likelihood():
    coords, values, observed = a_batch()
    parameters = coupled_fit._Parameters(Kernel((0.3,), 1.0, 0.3, 0.2, 1.5), 3, seed=1)
    cells = Cells.of(coords, observed, torch.arange(3))
    coupled_fit._loss(parameters.kernel(), cells, values).backward()
    found = [p.grad.clone() for p in parameters.parameters()]
    parameters.zero_grad()
    kernel, total = parameters.kernel(), 0.0
    covariance = kernel.covariance(cells.coords, cells.channel)
    for p in range(3):
        k = int(cells.exists[p].sum())
        y = values[p, cells.point[p, :k], cells.channel[p, :k]]
        noise = torch.diag(kernel.noises[cells.channel[p, :k]] ** 2 + JITTER)
        normal = torch.distributions.MultivariateNormal(torch.zeros(k, dtype=y.dtype), covariance[p, :k, :k] + noise)
        total = total - normal.log_prob(y)
    (total / cells.exists.sum()).backward()
    for one, p in zip(found, parameters.parameters(), strict=True):
        torch.testing.assert_close(one, p.grad, rtol=1e-6, atol=1e-9)


def drawn(coupling, samples=80, n=16):
    """Two channels of one process each, with this correlation, half of whose cells are missing."""
    rng = np.random.default_rng(3)
    t = np.linspace(0, 1, n)
    root = np.linalg.cholesky(rho(abs(t[:, None] - t) / 0.15, 1.5) + 1e-9 * np.eye(n))
    both = np.linalg.cholesky(np.array([[1.0, coupling], [coupling, 1.0]]))
    y = np.einsum("tu,nuj,ij->nti", root, rng.normal(size=(samples, n, 2)), both)
    observed = rng.random(y.shape) < 0.5
    coords = torch.tensor(t)[None, :, None].expand(samples, -1, -1)
    return coords, torch.tensor(np.where(observed, y + 0.05 * rng.normal(size=y.shape), 0)), torch.tensor(observed), y


KERNEL = Kernel((0.15,), 1.0, 0.1, 0.1, 1.5)


def test_the_fit_finds_how_channels_go_together():
    coords, values, observed, truth = drawn(0.95)
    found = coupled_fit.fit_coupled(KERNEL, coords, values, observed)
    assert found is not None
    total = found.matrices.sum(0)
    assert float(total[0, 1] / (total[0, 0] * total[1, 1]).sqrt()) == pytest.approx(0.95, abs=0.05)
    hidden = ~observed.numpy()
    at = series.constant(coords)
    error = [
        np.square(start(at).value.numpy() - truth)[hidden].mean()
        for start in (
            CoupledMean(found, coords, values, observed),
            make_start("smooth", coords, values, observed, KERNEL),
        )
    ]
    assert error[0] < 0.6 * error[1]


def test_channels_that_do_not_go_together_are_not_coupled():
    coords, values, observed, _ = drawn(0.0)
    assert coupled_fit.fit_coupled(KERNEL, coords, values, observed) is None


@pytest.mark.parametrize("case", ["few samples", "one channel", "many cells"])
def test_no_fit_where_it_would_not_be_worth_its_time(case, monkeypatch):
    coords, values, observed, _ = drawn(0.95)
    if case == "few samples":
        coords, values, observed = coords[:3], values[:3], observed[:3]
    elif case == "one channel":
        values, observed = values[..., :1], observed[..., :1]
    else:
        monkeypatch.setattr(coupled_fit, "MAX_CELLS", 4)
    assert coupled_fit.fit_coupled(KERNEL, coords, values, observed) is None


def test_a_kernel_comes_back_from_a_file_and_nonsense_is_refused():
    kernel = a_kernel()
    tensors, about = kernel.tensors(), kernel.describe()
    again = CoupledKernel.from_tensors(tensors, about, 1, 3)
    assert all(torch.equal(a, b) for a, b in zip(again.tensors().values(), tensors.values(), strict=True))
    wrong = {
        "shapes": tensors | {"noises": torch.ones(2)},
        "not positive": tensors | {"matrices": -tensors["matrices"]},
        "positive definite": tensors | {"lengthscales": torch.zeros(2, 1)},
    }
    for words, changed in wrong.items():
        with pytest.raises(ValueError, match=words.split()[-1]):
            CoupledKernel.from_tensors(changed, about, 1, 3)
    with pytest.raises(ValueError, match="smoothness"):
        CoupledKernel.from_tensors(tensors, {"smoothness": 0.7}, 1, 3)
