"""Muon: its step against the singular value decomposition, who gets it, what it learns."""

import pytest
import torch
from problems import normal, tiny_network

from cstformer.training.optimiser import MOMENTUM, Muon, make_optimiser, orthogonal


@pytest.mark.parametrize("shape", [(3, 5, 5), (2, 4, 9), (2, 9, 4)])
def test_orthogonal_keeps_the_singular_vectors(shape):
    x = normal(*shape)
    u, s, vh = torch.linalg.svd(x, full_matrices=False)
    y = u.mT @ orthogonal(x) @ vh.mT  # diagonal if the singular vectors are the same
    values = y.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(y, torch.diag_embed(values), rtol=0, atol=1e-9)
    assert float(values.min()) > 0.65 and float(values.max()) < 1.2
    assert float((s[:, 0] / s[:, -1]).min()) > 2  # which were not alike before


def test_a_step_by_hand():
    """Decay, then the orthogonal part of the gradient times 0.2 √n and the rate."""
    p, bias = (torch.nn.Parameter(normal(*shape)) for shape in ((3, 4), (2,)))
    before, bias_before = p.detach().clone(), bias.detach().clone()
    optimiser = Muon([p], [bias], lr=0.1, weight_decay=0.5)
    gradient = normal(3, 4, seed=1)
    p.grad, bias.grad = gradient.clone(), torch.tensor([3.0, -0.1]).double()
    optimiser.step()
    want = before * (1 - 0.1 * 0.5) - 0.1 * 0.2 * 4**0.5 * orthogonal(gradient[None])[0]
    torch.testing.assert_close(p.detach(), want)
    torch.testing.assert_close(optimiser.state[p]["momentum"], (1 - MOMENTUM) * gradient)
    adam = bias_before * (1 - 0.1 * 0.5) - 0.1 * torch.tensor([1.0, -1.0]).double()  # AdamW's first step: signs
    torch.testing.assert_close(bias.detach(), adam, rtol=0, atol=1e-6)


def test_only_matrices_of_blocks_get_it():
    network = tiny_network(near=True)
    assert type(make_optimiser(network, "adamw", 1e-3, 0.1)) is torch.optim.AdamW
    optimiser = make_optimiser(network, "muon", 1e-3, 0.1)
    matrices, others = (group["params"] for group in optimiser.param_groups)
    assert {(group["lr"], group["weight_decay"]) for group in optimiser.param_groups} == {(1e-3, 0.1)}
    names = {id(p): name for name, p in network.named_parameters()}
    assert len(matrices) == 2 * 5 and all(names[id(p)].startswith("blocks.") and p.ndim == 2 for p in matrices)
    assert len(matrices) + len(others) == len(names)
    assert any("offset" in names[id(p)] for p in others) and any(names[id(p)] == "embed.weight" for p in others)


def test_a_closure_is_called_once_and_its_loss_returned():
    p = torch.nn.Parameter(torch.eye(2))
    optimiser, calls = Muon([p], [torch.nn.Parameter(torch.ones(1))], lr=0.05, weight_decay=0.0), []

    def closure():
        optimiser.zero_grad()
        loss = (p - torch.ones(2, 2)).square().sum()
        loss.backward()
        calls.append(float(loss.detach()))
        return loss

    returned = [float(optimiser.step(closure).detach()) for _ in range(30)]
    assert returned == calls and len(calls) == 30
    assert calls[-1] < 0.3 * calls[0]
