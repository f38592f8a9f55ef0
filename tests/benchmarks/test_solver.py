"""The plain scheme solves the same equation, to first order; the rows say what was measured."""

import numpy as np
import pytest
import torch

from cstformer.benchmarks import solver
from cstformer.datasets.navier_stokes import VISCOSITY, Law, forcing, initial_vorticity
from cstformer.datasets.vorticity import solve


def test_the_plain_scheme_solves_the_same_equation():
    w0 = torch.as_tensor(np.stack([initial_vorticity(i, Law()) for i in range(2)]))
    force = torch.as_tensor(forcing(64))
    w0 = solve(w0, [1.0], viscosity=VISCOSITY, step=1 / 16, forcing=force)[:, 0]
    truth = solve(w0, [0.2], viscosity=VISCOSITY, step=0.02, forcing=force)[:, 0]
    errors = [float((solver.Plain(w0, 0.2 / n).run(n) - truth).norm() / (truth - w0).norm()) for n in (20, 40)]
    assert errors[0] < 0.01
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.05)


def test_rows():
    rows = solver.measure(quick=True)
    ours = [row for row in rows if "times faster" in row]
    assert len(rows) == 4
    assert len(ours) == 2
    for row in ours:
        assert row["relative error at t = 20"] < 2e-5
        assert row["times faster"] > 50  # 150 on an idle machine
