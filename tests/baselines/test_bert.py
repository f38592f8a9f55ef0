"""The Transformer with BERT masking: which points are picked, what becomes of them, and what enters the loss."""

import numpy as np
import pytest
import torch
from problems import generator
from scipy.interpolate import CubicSpline, interp1d
from torch import nn

from cstformer.baselines import BASELINES, BertTransformer
from cstformer.baselines.bert import mask_points, pick_points
from cstformer.data.batch import Batch
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.starts.kinds import unfitted_kind
from cstformer.taylor.series import constant


def points(batch=40, n=10, c=2, seed=0):
    """Distinct values everywhere; ragged, and some channels missing."""
    g = generator(seed)
    values = torch.randn(batch, n, c, generator=g)
    observed = torch.rand(batch, n, c, generator=g) > 0.1
    observed[:, :3] = True
    observed[::2, 7:] = False
    return Batch(torch.rand(batch, n, 1, generator=g), values * observed, observed)


def waves(count=12, seed=0):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0, 1, (count, 8)), axis=1)
    return Samples(t, np.sin(6 * t + rng.uniform(0, 6, (count, 1))))


@pytest.fixture(scope="module")
def fitted():
    return BertTransformer.preset("smoke", steps=3).fit(waves())


@pytest.mark.parametrize("n", [2, 3, 7, 10, 33])
def test_thirty_percent_are_picked(n):
    exists = torch.ones(4000, n + 2, dtype=torch.bool)
    exists[:, [1, -1]] = False
    picked = pick_points(exists, 0.3, generator(0))
    count = picked.sum(1)
    assert not (picked & ~exists).any()
    assert count.min() >= 1 and count.max() < n
    assert (count - 0.3 * n).abs().max() <= 1  # only the rounding is random
    expected = max(1.0, 0.3 * n)
    assert float(count.double().mean()) == pytest.approx(expected, rel=0.03)
    where = picked[:, exists[0]].double().mean(0)  # no place is favoured
    assert float((where - expected / n).abs().max()) < 4.5 * 0.5 / 4000**0.5


def test_fates_of_picked_points():
    p = points(batch=4000)
    picked = pick_points(p.exists, 0.3, generator(1))
    shown = mask_points(p, picked, 0.5, generator(2))
    assert torch.equal(shown.coords, p.coords)
    assert torch.equal(shown.exists, p.exists)  # nothing appears, nothing vanishes
    same = (shown.values == p.values).all(-1) & (shown.observed == p.observed).all(-1)
    assert same[~picked].all()
    constant_ = (shown.values == 0.5).all(-1) & shown.observed.all(-1)
    shares = [float(x[picked].double().mean()) for x in (constant_, ~constant_ & ~same, same & ~constant_)]
    assert shares == pytest.approx([0.8, 0.1, 0.1], abs=0.012)
    # A replaced point carries the content of a real one, missing channels included.
    replaced = picked & ~constant_ & ~same
    content = {tuple(v) for v in p.values[p.exists].tolist()}
    assert all(tuple(v) in content for v in shown.values[replaced].tolist())
    assert (shown.values[replaced] == 0).eq(~shown.observed[replaced]).all()


def test_replacements_come_from_all_samples_and_points():
    p = points(batch=3, n=4)
    p = Batch(p.coords, torch.arange(12.0).reshape(3, 4, 1), torch.ones(3, 4, 1, dtype=torch.bool))
    p.observed[1, 2:] = False
    everyone = p.exists
    seen = [mask_points(p, everyone, 0.5, generator(s), shares=(0.0, 1.0)).values[everyone] for s in range(300)]
    values, counts = torch.cat(seen).unique(return_counts=True)
    assert values.tolist() == [0, 1, 2, 3, 4, 5, 8, 9, 10, 11]  # 6 and 7 do not exist
    share = counts / counts.sum()
    expected = torch.tensor([1 / 12] * 4 + [1 / 6] * 2 + [1 / 12] * 4)  # a random sample first, then a point of it
    assert float((share - expected).abs().max()) < 0.02


class Stub(nn.Module):
    """Answers with its own parameter and remembers what it was shown."""

    def __init__(self, shape):
        super().__init__()
        self.answers = nn.Parameter(torch.randn(shape, generator=generator(5)))

    def forward(self, context, at, start, maps=None, exists=None):
        self.shown = context
        assert at.coefs.shape[2] == start.coefs.shape[2] == 0  # no queries in training
        return self.answers, start


def test_only_picked_observed_values_enter_the_loss():
    p = points()
    model = BertTransformer()
    model.network_ = Stub(p.values.shape)
    loss = model._loss(p, generator(3))
    loss.backward()
    wanted = p.observed & pick_points(p.exists, 0.3, generator(3))[..., None]
    gradient = model.network_.answers.grad
    assert torch.equal(gradient != 0, wanted)
    by_hand = (model.network_.answers - p.values)[wanted].square().mean()
    torch.testing.assert_close(loss, by_hand)


def test_augmentation_is_on_the_input_only():
    p = points(batch=400)
    losses, shown = [], []
    for augmentation in (0.0, 0.2):
        model = BertTransformer(augmentation=augmentation)
        model.network_ = Stub(p.values.shape)
        losses.append(model._loss(p, generator(3)).item())
        shown.append(model.network_.shown)
    assert losses[0] == losses[1]  # the same points are picked and their targets stay clean
    picked = pick_points(p.exists, 0.3, generator(3))
    noise = (shown[1].values - p.values)[p.observed & ~picked[..., None]]
    assert float(noise.std()) == pytest.approx(0.2, rel=0.05) and abs(float(noise.mean())) < 0.01
    constants = (shown[1].values == 0.5).all(-1)
    assert float(constants[picked].double().mean()) == pytest.approx(0.8, abs=0.04)


def test_validation_masks_with_constants_only():
    p = points(batch=20)
    model = BertTransformer(seed=4)
    model.network_ = Stub((120, 10, 2))
    score = model._validation(p)
    assert score() == score()
    shown = model.network_.shown
    changed = (shown.values != p.values.repeat(6, 1, 1)).any(-1)  # 128 // 20 = 6 patterns
    assert (shown.values[changed] == 0.5).all() and shown.observed[changed].all()
    assert torch.equal(shown.exists, p.exists.repeat(6, 1))
    picked = pick_points(shown.exists, 0.3, generator(4))
    assert torch.equal(changed, picked)
    wanted = p.observed.repeat(6, 1, 1) & picked[..., None]
    expected = (model.network_.answers - p.values.repeat(6, 1, 1))[wanted].square().mean().item()
    assert score() == pytest.approx(expected, rel=1e-5)


def test_a_query_is_a_masked_point(fitted):
    """Hide one point: the answer of the training path at it equals the prediction at its coordinate."""
    s = waves(4, seed=1)
    batch = fitted._batch(s)
    mask = torch.zeros(4, 8, dtype=torch.bool)
    mask[:, 3] = True
    shown = mask_points(batch, mask, fitted.mask_constant, generator(0), shares=(1.0, 0.0))
    with torch.no_grad():
        answers, _ = fitted.network_(shown, constant(batch.coords[:, :0]), constant(batch.values[:, :0]))
    expected = fitted.scaling_.values(answers[:, 3].double().numpy())
    y = fitted.predict(s.subset_points(~mask.numpy()), s.coords[:, 3:4])
    np.testing.assert_allclose(y[:, 0], expected, rtol=1e-5, atol=1e-6)


def test_queries_are_asked_alone(fitted):
    s, at = waves(3, seed=2), np.linspace(0.1, 0.9, 7)
    y = fitted.predict(s, at)
    alone = np.concatenate([fitted.predict(s, [t]) for t in at], axis=1)
    np.testing.assert_allclose(y, alone, rtol=1e-5, atol=1e-6)


def test_queries_asked_together(fitted, monkeypatch):
    """Groups of three, the last one filled up with queries that nobody reads."""
    s, at = waves(3, seed=2), np.linspace(0.1, 0.9, 7)
    monkeypatch.setattr(fitted, "together", 3)
    y = fitted.predict(s, at)
    parts = [fitted.predict(s, at[i : i + 3]) for i in (0, 3, 6)]
    np.testing.assert_allclose(y, np.concatenate(parts, axis=1), rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(fitted, "together", 1)
    assert np.abs(fitted.predict(s, at[:6]) - y[:, :6]).max() > 1e-4  # company matters: attention is joint


def test_paper_preset_has_the_papers_size():
    """818 K in the paper's table; 320 of its 818,016 are an unused embedding table."""
    model = BertTransformer.preset("paper")
    model.kind_ = unfitted_kind(1, 2)
    network = model._network(1, 2)
    assert sum(p.numel() for p in network.parameters()) == 817_696
    a = network.architecture
    assert (a.width, a.layers, a.heads, a.feedforward, a.norm) == (32, 4, 4, 3072, "post")
    assert (a.pattern, a.encoding, a.readout) == ("joint", "linear", "plain")
    assert (model.picked, model.mask_constant) == (0.3, 0.5)


def test_a_device_that_is_not_here(fitted, tmp_path, monkeypatch):
    with pytest.raises(CSTError, match="device='cuda:99' cannot be used here"):
        BertTransformer(device="cuda:99").fit(waves())
    fitted.save(tmp_path / "model")
    file = tmp_path / "model" / "model.json"
    file.write_text(file.read_text().replace('"device": "auto"', '"device": "cuda:99"'))
    with pytest.warns(UserWarning, match="loaded on the CPU"):
        model = BertTransformer.load(tmp_path / "model")
    np.testing.assert_array_equal(model.predict(waves(), [0.5]), fitted.predict(waves(), [0.5]))


def test_other_settings_are_checked():
    for changes, message in (
        ({"picked": 0.0}, "picked=0.0: must be at least"),
        ({"pattern": "context"}, "unknown value of pattern 'context'"),
        ({"width": 15, "heads": 2}, "width=15 is not a multiple"),
        ({"together": 0}, "together=0: must be at least 1"),
    ):
        with pytest.raises(CSTError, match=message):
            BertTransformer(**changes).fit(waves())
    assert repr(BertTransformer(picked=0.2)) == "BertTransformer(picked=0.2)"


@pytest.mark.parametrize("name", ["transformer-linear", "transformer-spline"])
def test_interpolated_rows_are_the_output_at_the_given_points_and_a_curve(name, fitted):
    """The same weights: at given points the network's own output, in between SciPy's curve through it."""
    s, at = waves(3, seed=2), np.linspace(0.05, 0.95, 31)
    row = BASELINES[name].of(fitted)
    points = row._batch(s)
    empty = (constant(x[:, :0]) for x in (points.coords, points.values))
    with torch.no_grad():
        output = row.scaling_.values(row.network_(points, *empty)[0].double().numpy())
    np.testing.assert_allclose(row.predict(s, s.coords), output, rtol=1e-5, atol=1e-6)
    assert np.abs(output - s.values).max() > 1e-3
    y = row.predict(s, at)
    for i in range(3):
        x = s.coords[i, :, 0]
        curve = interp1d(x, output[i], axis=0) if name.endswith("linear") else CubicSpline(x, output[i])
        inside = (at >= x[0]) & (at <= x[-1])
        np.testing.assert_allclose(y[i, inside], curve(at[inside]), rtol=1e-4, atol=1e-5)
