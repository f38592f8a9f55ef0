"""A training step: nothing hidden leaks, validation stands still, the Sobolev term is unbiased."""

import itertools

import pytest
import torch
from problems import KERNEL, generator, tiny_context, tiny_network

from cstformer.data.batch import Batch
from cstformer.starts.frames import Frames
from cstformer.starts.gaussian_process import Kernel
from cstformer.starts.kinds import unfitted_kind
from cstformer.training.disturbance import hide_points
from cstformer.training.objective import SobolevObjective, Validation
from cstformer.training.sampling import box, dummy_coords
from cstformer.training.settings import Settings

PATTERNS, ATTENTIONS = ("context", "joint"), ("exact", "nystrom")


def objective(pattern="context", attention="exact", start="smooth", noise=0.0, data_noise=0.0, mu=1e-3, d=1, **changes):
    network = tiny_network(d, pattern=pattern, attention_kind=attention)
    settings = Settings(**({"order": 2, "dummies": 4, "hide": 0.5, "batch": 2, "start": start} | changes))
    kind = unfitted_kind(d, 2)
    kind.kernel = Kernel(KERNEL.lengthscales * d, KERNEL.amplitude, KERNEL.offset, KERNEL.noise)
    return SobolevObjective(network, kind, settings, noise, data_noise, mu)


def batch(d: int = 1, size: int = 2, n: int = 6) -> Batch:
    return tiny_context(d, n=n, batch=size)


@pytest.mark.parametrize("start", ["linear", "hermite", "cubic", "smooth"])
@pytest.mark.parametrize("pattern, attention", itertools.product(PATTERNS, ATTENTIONS))
@pytest.mark.parametrize("d", [1, 2])
def test_hidden_values_never_reach_an_answer(d, pattern, attention, start):
    """Whatever a hidden point's value is: no answer changes, not even at the hidden point, start included."""
    o, points = objective(pattern, attention, start, d=d), batch(d)
    keep = hide_points(points.exists, 0.5, generator(1))
    hidden = points.exists & ~keep
    assert bool(hidden.any(1).all())
    low, high = box(points.coords, points.exists)
    dummies = dummy_coords("uniform", low, high, 4, generator(2))

    def answers(values):
        moved = points.replace(values=values)
        context, target = o.disturb(moved, keep, generator(3))
        at_real, at_dummies = o.answers(context, moved, dummies, o.plan.order)
        return at_real[points.exists], at_dummies.coefs, target

    huge = torch.where(hidden[..., None], torch.full_like(points.values, 1e6), points.values)
    real, series, target = answers(points.values)
    real_huge, series_huge, target_huge = answers(huge)
    assert torch.equal(real, real_huge) and torch.equal(series, series_huge)
    assert not torch.equal(target, target_huge)  # the value is there, as something to be compared with
    # and a visible value does matter
    visible = torch.where(keep[..., None], points.values + 1, points.values)
    assert not torch.equal(answers(visible)[0], real)


@pytest.mark.parametrize("pattern, attention", itertools.product(PATTERNS, ATTENTIONS))
def test_loss_is_differentiable_reproducible_and_random(pattern, attention):
    o, data = objective(pattern, attention, noise=0.1), batch()
    loss = o.loss(data, generator(0))
    loss.backward()
    assert all(bool(torch.isfinite(p.grad).all()) and bool(p.grad.any()) for p in o.network.parameters())
    assert torch.equal(loss, o.loss(data, generator(0)))
    assert not torch.equal(loss, o.loss(data, generator(1)))


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(
    "changes", [{"hide": 0.0}, {"dummies": 0}, {"order": 0}, {"p": 3.0, "root": True}, {"p": float("inf")}]
)
def test_loss_in_the_corners_of_its_settings(pattern, changes):
    o = objective(pattern, noise=0.1, data_noise=0.1, coord_noise=0.01, **changes)
    loss = o.loss(batch(), generator(0))
    loss.backward()
    assert bool(torch.isfinite(loss)) and bool(loss > 0)


def test_no_noise_and_no_hiding_is_the_plain_sobolev_loss():
    """context: the loss is data_term at all real points + μ Σ over dummies, recomputed here plainly."""
    o, points = objective(hide=0.0, dummy_law="regular", mu=0.01, sobolev_every=1), batch()
    low, high = box(points.coords, points.exists)
    at_real, y = o.answers(points, points, dummy_coords("regular", low, high, 4), o.plan.order)
    error = (at_real - points.values)[points.observed].square().mean()
    slopes = y.at(1)[0].square().mean() + (2 * y.at(2)[0]).square().mean()
    torch.testing.assert_close(o.loss(points, generator(0)), error + 0.01 * slopes)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_groups_are_hidden_together(pattern):
    o, points = objective(pattern), batch()
    grouped = points.replace(frame=torch.tensor([[0, 0, 1, 1, 2, 2]]).expand(2, -1))
    assert bool(torch.isfinite(o.loss(grouped, generator(0))))
    keep = Validation(o, grouped, seed=0).keep.all(-1)
    assert bool((points.exists & ~keep).any())
    kept, exists = (x.reshape(2, 3, 2).sum(-1) for x in (keep, points.exists))
    assert bool(((kept == 0) | (kept == exists)).all())


@pytest.mark.parametrize("pattern, attention", itertools.product(PATTERNS, ATTENTIONS))
def test_validation_stands_still(pattern, attention):
    o, data = objective(pattern, attention, noise=0.3), batch(size=5)
    validation = Validation(o, data, seed=7, patterns=2)
    keep, dummies = validation.keep.clone(), validation.dummies.clone()
    first = validation.score()
    torch.manual_seed(99)  # the global generator has no say
    o.loss(data, generator(5))
    assert validation.score() == first
    assert torch.equal(validation.keep, keep) and torch.equal(validation.dummies, dummies)
    assert Validation(o, data, seed=7, patterns=2).score() == first
    assert Validation(o, data, seed=8, patterns=2).score() != first


def test_validation_hides_something_everywhere_and_scores_it():
    o, data = objective(mu=0.0), batch(size=5)
    validation = Validation(o, data, seed=0, patterns=3)
    points = validation.batch
    assert len(validation.batch) == 15
    keep = validation.keep.all(-1) & points.exists
    hidden = points.exists & ~keep
    assert bool(hidden.any(1).all()) and bool((keep.sum(1) >= 2).all())
    before = validation.score()
    values = torch.where(hidden[..., None], points.values + 10, points.values)
    validation.batch = points.replace(values=values)
    assert validation.score() > before + 10  # the hidden values are the targets


def test_targets_stay_the_data_unless_the_loss_is_squared():
    points = batch()
    keep = points.exists
    for o in (
        objective(noise=0.2, data_noise=0.3, p=3.0),
        objective(noise=0.2, data_noise=0.0),
        objective(noise=0.0, data_noise=0.3),
    ):
        assert torch.equal(o.disturb(points, keep, generator(0))[1], points.values)
    squared = objective(noise=0.2, data_noise=0.3)
    assert not torch.equal(squared.disturb(points, keep, generator(0))[1], points.values)


def test_the_context_is_what_was_kept():
    o, points = objective(noise=0.2, coord_noise=0.1), batch()
    keep = hide_points(points.exists, 0.5, generator(1))
    context, _ = o.disturb(points, keep, generator(0))
    assert torch.equal(context.exists, keep)
    assert torch.equal(context.observed, points.observed & keep[..., None])
    for noisy, clean in ((context.values, points.values), (context.coords, points.coords)):
        assert bool((noisy != clean).all())


def test_a_corruption_is_drawn_anew_in_the_place_of_noise():
    """Targets are the clean values; a validation set draws its corruption once."""
    plain = objective(noise=0.2, data_noise=0.3, mu=0.0)

    def noisy(values, g):
        return values + 5 * torch.rand(values.shape, generator=g, dtype=values.dtype)

    o = SobolevObjective(plain.network, plain.kind, plain.settings, 0.2, 0.3, 0.0, noisy)
    points = batch()
    context, target = o.disturb(points, points.exists, generator(3))
    assert torch.equal(context.values, noisy(points.values, generator(3)))
    assert torch.equal(target, points.values)
    assert not torch.equal(o.disturb(points, points.exists, generator(4))[0].values, context.values)
    validation = Validation(o, points, seed=0)
    assert validation.score() == validation.score() == Validation(o, points, seed=0).score()
    assert validation.score() > Validation(plain, points, seed=0).score() + 1


def test_large_samples_are_asked_at_some_of_their_points(monkeypatch):
    """The loss over a random few is, on average, the loss over all."""
    o, points = objective(mu=0.0), batch(n=12)
    asked, answers = [], SobolevObjective.answers

    def spy(self, context, points, *rest):
        asked.append((context.coords.shape[1], points.coords.shape[1]))
        return answers(self, context, points, *rest)

    monkeypatch.setattr(SobolevObjective, "answers", spy)
    means = []
    with torch.no_grad():
        for most in (5, 12):
            monkeypatch.setattr("cstformer.training.objective.MAX_QUERIES", most)
            means.append(sum(float(o.loss(points, generator(seed))) for seed in range(300)) / 300)
    assert set(asked[:300]) == {(12, 5)} and set(asked[300:]) == {(12, 12)}
    assert means[0] == pytest.approx(means[1], rel=0.05)


def test_hidden_frames_are_asked_first(monkeypatch):
    """Of four hidden and eight visible points, five of which are asked, more than half are hidden ones."""
    o, points = objective(mu=0.0, hide=0.01), batch(n=12)
    monkeypatch.setattr(o.kind, "hidden_first", Frames.hidden_first, raising=False)
    groups = torch.arange(12).div(4, rounding_mode="floor").expand(2, -1)
    hidden, answers = [], SobolevObjective.answers

    def spy(self, context, points, *rest):
        given = set(context.coords[context.exists][:, 0].tolist())  # times of both samples are all different
        hidden.append(sum(t not in given for t in points.coords.flatten().tolist()) / points.coords.numel())
        return answers(self, context, points, *rest)

    monkeypatch.setattr(SobolevObjective, "answers", spy)
    monkeypatch.setattr("cstformer.training.objective.MAX_QUERIES", 5)
    with torch.no_grad():
        for seed in range(50):
            o.loss(points.replace(frame=groups), generator(seed))
    assert 0.5 < sum(hidden) / 50 < 0.8


def test_targets_are_cleaned_for_the_squared_loss_alone(monkeypatch):
    """Targets of zero instead of the data: the loss is then the mean square of the answer."""
    for p, cleaned in ((2.0, True), (3.0, False)):
        o, points = objective(mu=0.0, hide=0.0, p=p), batch()
        monkeypatch.setattr(o.kind, "clean", lambda batch, target: torch.zeros_like(target))
        y = o.answers(*_everything(), 0)[0]
        target = torch.zeros_like(y) if cleaned else points.values
        want = (y - target).abs().pow(p)[points.observed].mean()
        assert float(o.loss(points, generator(0)).detach()) == pytest.approx(float(want.detach()))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_rare_sobolev_term_is_unbiased(pattern):
    """Computed in one of three random steps with three times the weight, it is the same loss on average."""
    changes = {"hide": 0.0, "dummy_law": "regular"}  # nothing else is random
    rare, always = (objective(pattern, mu=0.1, sobolev_every=k, **changes) for k in (3, 1))
    with torch.no_grad():
        values = torch.tensor([float(rare.loss(batch(), generator(seed))) for seed in range(600)])
        whole = float(always.loss(batch(), generator(0)))
        without = rare.combine(*rare.answers(*_everything(), 0)[:1], batch().values, batch().observed, None, 0)
    high = values > values.median()
    assert float(values[high].unique()) == pytest.approx(float(without) + 3 * (whole - float(without)))
    assert values[~high].unique().tolist() == pytest.approx([float(without)])
    assert float(high.float().mean()) == pytest.approx(1 / 3, abs=0.06)


def _everything():
    points = batch()
    low, high = box(points.coords, points.exists)
    return points, points, dummy_coords("regular", low, high, 4)


@pytest.mark.parametrize("changes", [{"root": True}, {"p": float("inf")}])
def test_a_root_or_a_maximum_needs_the_sobolev_term_in_every_step(changes):
    o = objective(mu=0.1, sobolev_every=5, hide=0.0, dummy_law="regular", **changes)
    with torch.no_grad():
        assert len({float(o.loss(batch(), generator(seed))) for seed in range(12)}) == 1


@pytest.mark.parametrize("pattern", PATTERNS)
def test_padding_changes_no_loss(pattern):
    o, points = objective(pattern, noise=0.1, data_noise=0.1), batch()
    loss = o.loss(points, generator(3))
    assert torch.equal(o.loss(points.padded(5), generator(3)), loss)
    plain, padded = (Validation(o, x, seed=0, hide=0.0).score() for x in (points, points.padded(5)))
    assert padded == plain


def test_validation_scores_samples_of_similar_length_together(monkeypatch):
    o, points = objective(batch=1), batch(size=8)  # four samples a pass
    observed = points.observed.clone()
    observed[::2, 3:] = False
    lengths = []
    monkeypatch.setattr(o, "answers", lambda c, p, *a: lengths.append(p.coords.shape[1]) or (p.values, None))
    Validation(o, points.replace(observed=observed), seed=0).score()
    assert lengths == [3, 6]


@pytest.mark.parametrize("noise_on", ["context", "tokens"])
def test_noise_on_tokens_leaves_the_start_clean(noise_on, monkeypatch):
    """The paper's scheme: queries start from the clean values, then every token gets noise of its own."""
    o = objective("joint", start="linear", noise=0.3, hide=0.0, noise_on=noise_on)
    points, seen = batch(size=64, n=6), []
    forward = o.network.forward
    monkeypatch.setattr(
        o.network, "forward", lambda c, at, y, **k: (seen.append((c, at, y)), forward(c, at, y, **k))[1]
    )
    o.loss(points, generator(0))
    context, at, initial = seen[0]
    clean = o.start(points)(at).value
    real, dummies = context.values - points.values, initial.value - clean
    assert float(real[points.exists].std()) == pytest.approx(0.3, rel=0.1)
    if noise_on == "tokens":
        assert float(dummies.std()) == pytest.approx(0.3, rel=0.1)  # not the interpolated noise of its neighbours
        assert torch.equal(initial.coefs[1:], o.start(points)(at).coefs[1:])
    else:
        assert float(dummies.std()) < 0.27
    # Validation has no noise.
    Validation(o, points, seed=0).score()
    assert len(seen) > 1 and all(bool(torch.isin(c.values, points.values).all()) for c, _, _ in seen[1:])


@pytest.mark.parametrize("visible", [0.0, 0.25, 1.0])
def test_visible_cells_count_as_the_setting_says(visible, monkeypatch):
    """A network that answers with its start: the loss is the weighted mean of the errors of the start."""
    o, points = objective(start="linear", mu=0.0, visible=visible), batch()
    shown = {}
    disturb = o.disturb
    monkeypatch.setattr(o, "disturb", lambda *a: shown.setdefault("context", disturb(*a)))
    loss = float(o.loss(points, generator(4)).detach())
    context, target = shown["context"]
    with torch.no_grad():
        answer, _ = o.answers(context, points, torch.zeros(2, 1, 1), 0)
    weights = torch.where(context.observed, visible, 1.0) * points.observed
    assert 0 < int(context.observed.sum()) < int(points.observed.sum())
    assert loss == pytest.approx(float((weights * (answer - target) ** 2).sum() / weights.sum()), rel=1e-5)
