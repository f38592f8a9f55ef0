"""The flow solver against exact flows, its order in time, what it conserves, finer grids, and bad input."""

import math

import numpy as np
import pytest
import torch

from cstformer.datasets.vorticity import solve, tendency, velocity
from cstformer.errors import CSTError

TURN = 2 * math.pi


def points(nx, ny, lengths=(1.0, 1.0)):
    x, y = (torch.arange(n, dtype=torch.float64) * (L / n) for n, L in zip((nx, ny), lengths, strict=True))
    return x[:, None], y[None, :]


def random_flow(count, nx, ny, size=1.0, seed=0, waves=3):
    """Smooth fields: a few long waves with random weights, the same functions on every grid."""
    x, y = points(nx, ny)
    generator = torch.Generator().manual_seed(seed)
    w = torch.zeros(count, nx, ny, dtype=torch.float64)
    for i in range(waves + 1):
        for j in range(-waves, waves + 1):
            if i > 0 or j > 0:
                a, b = torch.randn(2, count, 1, 1, generator=generator, dtype=torch.float64)
                w += (a * torch.cos(TURN * (i * x + j * y)) + b * torch.sin(TURN * (i * x + j * y))) / (i * i + j * j)
    return size * w


def mean(field):
    return field.mean(dim=(-2, -1))


def stream(w, lengths=(1.0, 1.0)):
    """ψ with −Δψ = w, by NumPy's transforms."""
    kx, ky = (TURN / L * np.fft.fftfreq(n, 1 / n) for n, L in zip(w.shape[-2:], lengths, strict=True))
    k2 = kx[:, None] ** 2 + ky**2
    k2[0, 0] = np.inf
    return torch.as_tensor(np.fft.ifft2(np.fft.fft2(w.numpy()) / k2).real)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float64, 1e-13), (torch.float32, 1e-6)])
@pytest.mark.parametrize("shape, lengths", [((32, 32), (1.0, 1.0)), ((24, 45), (2.0, 0.7))])
def test_taylor_green_vortices_only_decay(dtype, tolerance, shape, lengths):
    x, y = points(*shape, lengths)
    kx, ky = TURN / lengths[0], 2 * TURN / lengths[1]
    w0 = torch.sin(kx * x) * torch.cos(ky * y)
    times = [0.0, 0.013, 0.5, 0.77]
    w = solve(w0.to(dtype), times, viscosity=1e-2, step=0.05, lengths=lengths)
    exact = torch.exp(-1e-2 * (kx**2 + ky**2) * torch.tensor(times, dtype=torch.float64))[:, None, None] * w0
    assert w.dtype == dtype
    torch.testing.assert_close(w.double(), exact, rtol=0, atol=tolerance)


def test_waves_of_equal_length_are_steady_without_viscosity():
    x, y = points(32, 32)
    w0 = torch.cos(TURN * (3 * x + 4 * y)) + 2 * torch.sin(TURN * 5 * x)
    torch.testing.assert_close(solve(w0, [1.0], viscosity=0.0, step=0.02)[0], w0, rtol=0, atol=1e-12)


def test_advection_by_hand():
    # ψ = a cos 2πx + b cos 4πy: u = −4πb sin 4πy, v = 2πa sin 2πx, so that −u·∇w = 96π⁴ab sin 2πx sin 4πy.
    a, b, h, (x, y) = 0.03, 0.01, 1e-4, points(16, 16)
    w0 = TURN**2 * (a * torch.cos(TURN * x) + 4 * b * torch.cos(2 * TURN * y))
    slope = (solve(w0, [h], viscosity=0.0, step=h)[0] - w0) / h
    exact = 96 * math.pi**4 * a * b * torch.sin(TURN * x) * torch.sin(2 * TURN * y)
    torch.testing.assert_close(slope, exact, rtol=0, atol=1e-3)
    assert exact.max() > 2


def test_velocity_by_hand():
    lengths = (2.0, 0.5)
    x, y = points(16, 12, lengths)
    a, b = TURN / 2.0, TURN / 0.5
    psi = torch.sin(a * x) * torch.cos(b * y)
    u, v = velocity(((a**2 + b**2) * psi)[None].expand(3, -1, -1) + 5.0, lengths)
    torch.testing.assert_close(u, (-b * torch.sin(a * x) * torch.sin(b * y)).expand(3, -1, -1))
    torch.testing.assert_close(v, (-a * torch.cos(a * x) * torch.cos(b * y)).expand(3, -1, -1))


def test_order_in_time():
    w0 = random_flow(2, 24, 24, size=2.0)
    forcing = torch.sin(TURN * points(24, 24)[0]).expand(24, 24)

    def run(step):
        return solve(w0, [0.5], viscosity=5e-3, step=step, forcing=lambda t: forcing * math.cos(9 * t))

    truth, steps = run(0.5 / 256), np.array([0.5 / 16, 0.5 / 24, 0.5 / 32, 0.5 / 48])
    errors = [float((run(step) - truth).abs().max()) for step in steps]
    slope = np.polyfit(np.log(steps), np.log(errors), 1)[0]
    assert 3.8 < slope < 4.3


def test_without_viscosity_energy_and_enstrophy_stay():
    w0 = random_flow(3, 48, 32, size=3.0)
    w = solve(w0, [1.0], viscosity=0.0, step=0.005)[:, 0]
    assert (w - w0).abs().mean() > 0.1 * w0.abs().mean()  # it did move
    torch.testing.assert_close(mean(w**2), mean(w0**2), rtol=1e-7, atol=0)
    torch.testing.assert_close(mean(w * stream(w)), mean(w0 * stream(w0)), rtol=1e-7, atol=0)


def test_energy_and_enstrophy_balance_with_forcing():
    # d/dt ½⟨w²⟩ = −ν⟨|∇w|²⟩ + ⟨w f⟩ and d/dt ½⟨w ψ⟩ = −ν⟨w²⟩ + ⟨ψ f⟩, the left by differences of order four.
    nu, h, x, y = 5e-3, 0.01, *points(32, 32)
    forcing = torch.cos(TURN * (2 * x - y))
    at = 0.3 + h * np.arange(-2, 3)
    w = solve(random_flow(2, 32, 32), at, viscosity=nu, step=0.01, forcing=forcing)
    psi = stream(w)
    slope = torch.tensor([1.0, -8.0, 0.0, 8.0, -1.0], dtype=torch.float64) / (12 * h)
    # |∇w|² has the mean of w·(−Δw), and −Δ is undone by `stream`: ask for the gradient in Fourier space.
    kx, ky = (TURN * np.fft.fftfreq(32, 1 / 32) for _ in range(2))
    rough = torch.as_tensor(np.fft.ifft2(np.fft.fft2(w.numpy()) * (kx[:, None] ** 2 + ky**2)).real)
    torch.testing.assert_close(
        mean(w**2) / 2 @ slope, (-nu * mean(w * rough) + mean(w * forcing))[:, 2], rtol=1e-6, atol=0
    )
    torch.testing.assert_close(
        mean(w * psi) / 2 @ slope, (-nu * mean(w**2) + mean(psi * forcing))[:, 2], rtol=1e-6, atol=0
    )


def test_forcing_that_changes_in_time():
    # One wave with w' = −νk²w + cos t: w = (r cos t + sin t − r e^{−rt}) / (r² + 1), r = νk².
    wave, times = torch.sin(TURN * points(16, 16)[1]).expand(16, 16), [0.4, 2.0]
    w = solve(torch.zeros(1, 16, 16), times, viscosity=0.05, step=0.05, forcing=lambda t: math.cos(t) * wave)
    r, t = 0.05 * TURN**2, np.array(times)
    exact = (r * np.cos(t) + np.sin(t) - r * np.exp(-r * t)) / (r**2 + 1)
    np.testing.assert_allclose(w[0, :, 0, 4], exact, atol=1e-6)


def test_a_finer_grid_gives_the_same_flow():
    def run(n):
        x, y = points(n, n)
        return solve(random_flow(1, n, n), [3.0], viscosity=1e-2, step=0.02, forcing=torch.cos(TURN * (x + y)))

    coarse, fine = run(64), run(128)[..., ::2, ::2]
    torch.testing.assert_close(coarse, fine, rtol=0, atol=1e-6 * float(fine.abs().max()))


def test_flows_of_a_batch_do_not_see_each_other():
    w0 = random_flow(5, 16, 20)  # odd: one is paired with a flow at rest
    forcing = random_flow(5, 16, 20, seed=1)
    together = solve(w0.reshape(5, 1, 16, 20), [0.3, 0.5], viscosity=1e-2, step=0.05, forcing=forcing[:, None])
    assert together.shape == (5, 1, 2, 16, 20)
    for i in range(5):
        alone = solve(w0[i], [0.3, 0.5], viscosity=1e-2, step=0.05, forcing=forcing[i])
        torch.testing.assert_close(together[i, 0], alone, rtol=0, atol=1e-13)


def test_snapshots_do_not_disturb_the_flow():
    w0 = random_flow(1, 32, 32)
    often = solve(w0, [0.1234, 0.1235, 0.7, 1.0], viscosity=1e-2, step=0.01)
    once = solve(w0, [1.0], viscosity=1e-2, step=0.01)
    torch.testing.assert_close(often[:, -1:], once, rtol=0, atol=1e-8)
    later = solve(often[:, 2], [1.0], viscosity=1e-2, step=0.01, start=0.7)
    torch.testing.assert_close(later, once, rtol=0, atol=1e-8)


def test_waves_beyond_two_thirds_are_dropped():
    x, y = points(16, 16)
    kept, dropped = torch.cos(TURN * 5 * x) + 0 * y, torch.cos(TURN * 6 * y) + 0 * x
    torch.testing.assert_close(solve(kept + dropped, [0.0], viscosity=0.1, step=0.1)[0], kept, rtol=0, atol=1e-14)


def test_gradients_flow_through_the_solver():
    w0 = random_flow(1, 6, 6, waves=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda w: solve(w, [0.1], viscosity=1e-2, step=0.05), (w0,))


def test_a_step_that_is_too_long_is_refused_and_the_advice_is_good():
    w0 = random_flow(1, 32, 32, size=10.0)
    with pytest.raises(CSTError, match=r"step=0.1 is too long at time 0.* choose (\S+) or less \(CFL") as refusal:
        solve(w0, [0.1], viscosity=1e-3, step=0.1)
    advice = float(str(refusal.value).split("choose ")[1].split()[0])
    w = solve(w0, [4 * advice], viscosity=1e-3, step=0.9 * advice)
    assert mean(w**2) < mean(w0**2)


def test_a_flow_that_speeds_up_is_refused_on_its_way():
    x, y = points(16, 16)
    with pytest.raises(CSTError, match=r"too long at time [1-9]"):
        solve(0 * x * y, [50.0], viscosity=1e-3, step=0.5, forcing=torch.cos(TURN * (x + y)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"viscosity": -1.0}, "viscosity must be a number of at least 0, got -1.0"),
        ({"viscosity": math.nan}, "viscosity must be"),
        ({"step": 0.0}, "step must be a positive number, got 0.0"),
        ({"step": math.inf}, "step must be"),
        ({"times": []}, "times must be numbers that increase"),
        ({"times": [1.0, 1.0]}, "times must be numbers that increase"),
        ({"times": [-1.0]}, "increase from start=0 on"),
        ({"times": [math.inf]}, "times and start must be finite"),
        ({"lengths": (1.0, 0.0)}, "lengths must be two positive numbers"),
        ({"lengths": (1.0,)}, "lengths must be two"),
        ({"forcing": torch.zeros(4, 8)}, r"forcing must be a tensor \(8, 8\) or \(2, 8, 8\), got \(4, 8\)"),
        ({"forcing": lambda t: t}, "forcing must be a tensor .* got float"),
        ({"forcing": torch.full((8, 8), math.nan)}, "forcing has values that are not finite"),
        ({"initial": np.zeros((2, 8, 8))}, "must be a float32 or float64 tensor .* got ndarray"),
        ({"initial": torch.zeros(8, 8, dtype=torch.int64)}, r"got torch.int64 \(8, 8\)"),
        ({"initial": torch.zeros(8)}, r"tensor \(..., nx, ny\), got"),
        ({"initial": torch.zeros(0, 8, 8)}, "must not be empty"),
        ({"initial": torch.zeros(3, 8)}, "at least 4 × 4 points, got 3 × 8"),
        ({"initial": torch.full((8, 8), math.inf)}, "initial has values that are not finite"),
    ],
)
def test_bad_input(changes, message):
    good = {"initial": torch.zeros(2, 8, 8), "times": [1.0], "viscosity": 1e-3, "step": 0.1}
    arguments = good | changes
    with pytest.raises(CSTError, match=message):
        solve(arguments.pop("initial"), arguments.pop("times"), **arguments)


def test_the_tendency_is_the_slope_of_the_solution():
    """Central differences of the solution, of second order in their step."""
    w, force = random_flow(3, 32, 32), random_flow(1, 32, 32, seed=1)[0]
    settings = {"viscosity": 1e-2, "forcing": force}
    steps, errors = (0.04, 0.02, 0.01), []
    slope = tendency(solve(w, [0.1], step=5e-3, **settings)[:, 0], **settings)
    for h in steps:
        before, after = solve(w, [0.1 - h, 0.1 + h], step=5e-3, **settings).unbind(1)
        errors.append(float(((after - before) / (2 * h) - slope).abs().max()))
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert np.abs(orders - 2).max() < 0.1 and errors[-1] < 1e-2 * float(slope.abs().max())
