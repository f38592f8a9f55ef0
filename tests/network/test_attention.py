"""Attention: numbers by hand, Nyström against exact and against the published package, memory, masks."""

import math

import pytest
import torch
from nystrom_attention import NystromAttention
from problems import normal, relative_error, tiny_context, tiny_network, uniform
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cstformer.network.attention import exact_attention, exact_map, nystrom_attention, nystrom_map, plain_attention
from cstformer.taylor import attention as series_attention
from cstformer.taylor import series
from cstformer.taylor.series import Series, constant

LOG3 = math.log(3)


def column(*numbers: float) -> Series:
    """Tokens of one feature, one head, one sample: (1, 1, 1, n, 1)."""
    return constant(torch.tensor(numbers, dtype=torch.float64)[None, None, :, None])


def everyone(n: int, batch: int = 1) -> torch.Tensor:
    return torch.ones(batch, n, dtype=torch.bool)


def random_qkv(n: int, batch: int = 1, heads: int = 1, features: int = 4, size: float = 1.0):
    return [constant(size * normal(batch, heads, n, features, seed=s)) for s in (1, 2, 3)]


def test_two_tokens_by_hand():
    """Logits (0, log 3) weigh 1/4, 3/4 and (0, 2 log 3) weigh 1/10, 9/10."""
    q, k, v = column(1, 2), column(0, LOG3), column(4, 8)
    y = exact_attention(q, k, v, everyone(2)).value.flatten()
    torch.testing.assert_close(y, torch.tensor([7.0, 7.6]).double())
    weights = exact_map(q, k, everyone(2))[0, 0]
    torch.testing.assert_close(weights, torch.tensor([[0.25, 0.75], [0.1, 0.9]]).double())


def test_logits_are_divided_by_the_root_of_the_features():
    q = constant(torch.tensor([1.0, 0, 0, 0]).double()[None, None, None])
    k = constant(torch.tensor([[0.0] * 4, [2 * LOG3, 9, 9, 9]]).double()[None, None])
    torch.testing.assert_close(exact_map(q, k, everyone(2)).flatten(), torch.tensor([0.25, 0.75]).double())


def test_derivatives_of_two_tokens_by_hand():
    """With q = 1 + s and p the second key's weight: y = 4 + 4p, p' = p(1−p) log 3, p'' = p'(1−2p) log 3."""
    q = Series(torch.tensor([1.0, 1.0, 0.0]).double()[:, None, None, None, None], 2)
    y = exact_attention(q, column(0, LOG3), column(4, 8), everyone(2)).coefs.flatten()
    p = 0.75
    slope = p * (1 - p) * LOG3
    torch.testing.assert_close(y, torch.tensor([7.0, 4 * slope, 4 * slope * (1 - 2 * p) * LOG3 / 2]).double())


def test_masked_key_by_hand():
    q, k, v = column(1, 2), column(0, LOG3), column(4, 8)
    only_first = torch.tensor([[True, False]])
    assert exact_attention(q, k, v, only_first).value.flatten().tolist() == [4, 4]
    assert exact_map(q, k, only_first).flatten().tolist() == [1, 0, 1, 0]
    torch.testing.assert_close(
        nystrom_attention(q, k, v, only_first, 2, 6).value.flatten(), torch.tensor([4.0, 4.0]).double()
    )


@pytest.mark.parametrize("attention", ["exact", "nystrom"])
def test_no_key_at_all_gives_zeros(attention):
    q, k, v = random_qkv(3)
    nobody = ~everyone(3)
    y = exact_attention(q, k, v, nobody) if attention == "exact" else nystrom_attention(q, k, v, nobody, 2, 6)
    assert not y.coefs.any()
    assert not (exact_map(q, k, nobody) if attention == "exact" else nystrom_map(q, k, nobody, 2, 6)).any()


def test_large_logits_do_not_overflow():
    q, k, v = random_qkv(5, size=100.0)
    q, k, v = (x.map(lambda c: c.float()) for x in (q, k, v))
    assert bool(torch.isfinite(exact_attention(q, k, v, everyone(5)).coefs).all())


def test_exact_attention_is_torchs():
    q, k, v = random_qkv(7, batch=2, heads=3)
    exists = uniform(2, 7) > 0.3
    want = torch.nn.functional.scaled_dot_product_attention(q.value, k.value, v.value, exists[:, None, None])
    torch.testing.assert_close(exact_attention(q, k, v, exists).value, want)


def test_nystrom_with_one_landmark_by_hand():
    """The mean query 1.5 reads the keys (0, log 3) with weights 1 : 3^1.5; everybody gets its answer."""
    y = nystrom_attention(column(1, 2), column(0, LOG3), column(4, 8), everyone(2), 1, 6).value.flatten()
    want = (4 + 8 * 3**1.5) / (1 + 3**1.5)
    torch.testing.assert_close(y, torch.tensor([want, want]).double())


@pytest.mark.parametrize("landmarks", [9, 20])
def test_nystrom_with_a_landmark_per_token_is_exact(landmarks):
    q, k, v = random_qkv(9, batch=2, heads=2, features=8, size=1.5)
    exists = torch.ones(2, 9, dtype=torch.bool)
    exists[1, [2, 7]] = False
    got = nystrom_attention(q, k, v, exists, landmarks, iterations=30)
    want = exact_attention(q, k, v, exists)
    there = exists[:, None, :, None].expand_as(want.value)
    assert relative_error(got.value[there], want.value[there]) < 1e-6
    rows = exists[:, None, :, None].expand(-1, 2, -1, 9)
    assert relative_error(nystrom_map(q, k, exists, landmarks, 30)[rows], exact_map(q, k, exists)[rows]) < 1e-6


def test_nystrom_with_a_landmark_per_token_has_the_exact_derivatives():
    coefs = [normal(3, 1, 1, 6, 8, seed=s) * 1.5 for s in (1, 2, 3)]
    q, k, v = (Series(c, 2) for c in coefs)
    got = nystrom_attention(q, k, v, everyone(6), 6, iterations=30)
    assert relative_error(got.coefs, exact_attention(q, k, v, everyone(6)).coefs) < 1e-6


@pytest.mark.parametrize("tokens, landmarks", [(20, 5), (8, 8)])
def test_parity_with_the_nystrom_attention_package(tokens, landmarks):
    """Same weights, same answer. One head, one sample: the package scales by the maximum of the batch."""
    torch.manual_seed(0)
    package = NystromAttention(dim=6, dim_head=8, heads=1, num_landmarks=landmarks, pinv_iterations=6, residual=False)
    package = package.double().eval()
    x = normal(1, tokens, 6)
    q, k, v = (constant(part[:, None]) for part in package.to_qkv(x).chunk(3, -1))
    ours = package.to_out(nystrom_attention(q, k, v, everyone(tokens), landmarks, 6).value[:, 0])
    assert relative_error(ours, package(x)) < 1e-6


def test_nystrom_map_is_the_map_of_nystrom_attention():
    q, k, v = random_qkv(10, batch=2, heads=2)
    exists = torch.ones(2, 10, dtype=torch.bool)
    exists[0, 4] = False
    weights = nystrom_map(q, k, exists, 3, 6)
    torch.testing.assert_close(weights @ v.value, nystrom_attention(q, k, v, exists, 3, 6).value)


@pytest.mark.parametrize("landmarks", [3, 12])
def test_masked_tokens_are_as_good_as_removed(landmarks):
    q, k, v = random_qkv(8)
    keep = [0, 1, 3, 4, 6]
    exists = torch.zeros(1, 8, dtype=torch.bool)
    exists[:, keep] = True
    less = [x.map(lambda c: c[..., keep, :]) for x in (q, k, v)]
    for f in (exact_attention, lambda *a: nystrom_attention(*a, landmarks, 6)):
        torch.testing.assert_close(f(q, k, v, exists).value[..., keep, :], f(*less, everyone(5)).value)


def test_samples_do_not_mix():
    """The pseudo-inverse is scaled per sample and head: neighbours in the batch have no say."""
    q, k, v = random_qkv(8, batch=3, heads=2, size=2.0)
    together = nystrom_attention(q, k, v, everyone(8, 3), 4, iterations=3).value
    for b in range(3):
        for h in range(2):
            alone = [x.map(lambda c, b=b, h=h: c[:, b : b + 1, h : h + 1]) for x in (q, k, v)]
            torch.testing.assert_close(nystrom_attention(*alone, everyone(8), 4, 3).value[0, 0], together[b, h])


class Largest(TorchDispatchMode):
    """Remembers the size of the largest tensor any operation returns, and of all of them together."""

    def __init__(self):
        super().__init__()
        self.largest = self.total = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                # what it really occupies: an expanded view is free
                self.largest = max(self.largest, x.untyped_storage().nbytes() // x.element_size())
                self.total += x.numel()
        return out


def sizes(pattern: str, attention: str, n: int, order: int) -> tuple[int, int]:
    network = tiny_network(1, layers=2, pattern=pattern, attention_kind=attention, landmarks=8, dtype=torch.float32)
    context = tiny_context(1, n=n, batch=1, dtype=torch.float32)
    line = series.straight_line(uniform(1, 3, 1, dtype=torch.float32), torch.eye(1), order)
    start = series.linear(line, torch.ones(2, 1))
    with Largest() as seen:
        network(context, line, start)[1].coefs.square().sum().backward()
    return seen.largest, seen.total


@pytest.mark.parametrize("pattern, order", [("joint", 0), ("joint", 2), ("context", 2)])
def test_nystrom_memory_is_linear(pattern, order):
    """Forward and backward: twice the tokens, twice the largest tensor and the sum of all; no n×n exists."""
    small, middle, large = (sizes(pattern, "nystrom", n, order) for n in (500, 1000, 2000))
    for a, b in ((small, middle), (middle, large)):
        assert b[0] <= 2.05 * a[0] and b[1] <= 2.05 * a[1]
    assert large[0] < 2000 * 2000 / 10
    assert sizes("joint", "exact", 500, 1)[0] >= 500 * 500  # the detector sees an n×n map where there is one


def outcomes_of(attend) -> list[torch.Tensor]:
    """Answers and gradients with masks, keys that no sample of a piece has, and a sample without any key."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(4, 2, n, 4, generator=generator, dtype=torch.float64).requires_grad_() for n in (5, 7, 7))
    exists = torch.rand(4, 7, generator=generator) > 0.4
    exists[0] = True
    exists[1] = False
    exists[2, 4:] = False
    y = attend(constant(q), constant(k), constant(v), exists).value
    assert (y[1] == 0).all() and y[0].abs().max() > 0
    return [y.detach(), *torch.autograd.grad(y.square().sum(), (q, k, v))]


def test_torchs_fused_kernel_equals_the_plain_one(monkeypatch):
    monkeypatch.setattr("cstformer.network.attention._KEEP", 0)
    monkeypatch.setattr("cstformer.network.attention._FUSE_FROM", 0)
    for fused, plain in zip(outcomes_of(exact_attention), outcomes_of(plain_attention), strict=True):
        torch.testing.assert_close(fused, plain)


@pytest.mark.parametrize("piece", [1, 2 * 2 * 5 * 7, 2**20])
def test_the_step_with_its_own_backward_is_the_plain_one(piece, monkeypatch):
    """One sample a piece, two samples, all of them; and logits far apart, as those of nearness are."""
    monkeypatch.setattr("cstformer.network.softmax_attention._PIECE", piece)
    for size in (1.0, 30.0):

        def scaled(attend, size=size):
            return lambda q, k, v, exists: attend(q.map(lambda c: size * c), k.map(lambda c: size * c), v, exists)

        own = outcomes_of(scaled(exact_attention))
        for ours, plain in zip(own, outcomes_of(scaled(plain_attention)), strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-12)


def test_second_derivatives_through_the_own_backward():
    """By autograd twice: the gradient's own gradient is that of the formula."""
    q, k, v = (normal(1, 2, 3, 4, seed=s).requires_grad_() for s in (1, 2, 3))

    def twice(attend) -> tuple[torch.Tensor, ...]:
        y = attend(constant(q), constant(k), constant(v), everyone(3)).value
        slopes = torch.autograd.grad(y.square().sum(), (q, k, v), create_graph=True)
        return torch.autograd.grad(sum(s.square().sum() for s in slopes), (q, k, v))

    for ours, plain in zip(twice(exact_attention), twice(plain_attention), strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(ours, plain)


def test_a_training_step_of_attention_keeps_one_matrix_of_readers_and_keys():
    """What autograd stores besides the inputs and the answer."""
    q, k, v = (torch.randn(2, 2, 50, 4, requires_grad=True) for _ in range(3))
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x):
        exact_attention(constant(q), constant(k), constant(v), everyone(50, 2))
    assert sum(n for n in kept if n > q.numel()) == 2 * 2 * 50 * 50


@pytest.mark.parametrize("piece, keep", [(2**20, 2**20), (40, 2**20), (40, 0)])
@pytest.mark.parametrize("order, directions", [(3, 1), (2, 3)])
@pytest.mark.parametrize("constants", ["", "v", "kv", "q"])
def test_the_fused_step_is_the_plain_one(order, directions, constants, piece, keep, monkeypatch):
    """Values and gradients, in one piece and in many, stored and not; one sample has fewer keys, one none."""
    monkeypatch.setattr(series_attention, "_PIECE", piece)
    monkeypatch.setattr(series_attention, "_KEEP", keep)
    exists = torch.ones(3, 6, dtype=torch.bool)
    exists[1, 4:] = False
    exists[2] = False
    inputs = []
    for i, (name, n) in enumerate({"q": 5, "k": 6, "v": 6}.items()):
        count = 1 if name in constants else 1 + order * directions
        inputs.append(normal(count, 3, 2, n, 4, seed=i).requires_grad_())
    weights = normal(1 + order * directions, 3, 2, 5, 4, seed=9)

    def results(attend) -> list[torch.Tensor]:
        qkv = [Series(x, order, directions) if len(x) > 1 else constant(x[0]) for x in inputs]
        y = attend(*qkv, exists)
        assert (y.order, y.directions) == (order, directions)
        return [y.coefs, *torch.autograd.grad((y.coefs * weights).sum(), inputs)]

    for fused, plain in zip(results(exact_attention), results(plain_attention), strict=True):
        assert plain.abs().max() > 0
        torch.testing.assert_close(fused, plain, rtol=1e-10, atol=1e-11)
