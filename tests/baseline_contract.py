"""What every model must do, CST included; `test_contract.py` runs it for each name.

A new rival needs nothing here but, if its smoke preset learns too little or much more than half, an entry in
`CASES`. The problems are curves with two channels; a rival for frames alone gets a contract class of its own.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from cstformer import training
from cstformer.baselines import BASELINES
from cstformer.errors import CSTError
from cstformer.estimator import CST
from cstformer.samples import Samples
from cstformer.settings import Settings

MODELS: dict[str, Any] = {**BASELINES, "cst": CST}
AT = np.linspace(0, 1, 21)


@dataclass(frozen=True)
class Case:
    """How well a model must do: its root mean squared error over that of the mean predictor."""

    factor: float
    settings: dict[str, Any] = field(default_factory=dict)


CASES = {
    "mean": Case(1 + 1e-9),
    "nearest": Case(0.6),
    "linear": Case(0.25),
    "cubic": Case(0.1),
    "gp": Case(0.05),
    "transformer": Case(0.25, dict(steps=250, batch=16, learning_rate=5e-3)),
    # Below what its start alone reaches, the linear interpolation above.
    "cst": Case(0.2, dict(steps=200, order=0, start="linear", learning_rate=5e-3)),
}


def waves(count: int, seed: int, n: int = 9) -> tuple[Samples, np.ndarray]:
    """Sinusoids of random phase in two channels, each on its own irregular times; and their values at AT."""
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0.03, 0.97, (count, n)), axis=1)
    t[:, 0], t[:, -1] = 0, 1
    phase = rng.uniform(0, 2 * np.pi, (count, 1))

    def u(t: np.ndarray) -> np.ndarray:
        angle = 2 * np.pi * t + phase
        return np.stack([np.sin(angle), 2 + 3 * np.cos(angle)], axis=-1)

    return Samples(t, u(t)), u(AT[None])


def punctured(samples: Samples, seed: int = 0) -> Samples:
    """The same with some points missing, and some channels of others."""
    missing = np.random.default_rng(seed).random(samples.values.shape) < 0.15
    missing[:, :3] = missing[:, -1:] = False
    missing[::3, 4] = True
    return Samples(samples.coords, np.where(missing, np.nan, samples.values))


def tiny(name: str, **changes: Any) -> Any:
    """A model that fits in a moment."""
    steps = {"steps": 4} if issubclass(MODELS[name], Settings) else {}
    return MODELS[name].preset("smoke", **{**steps, **changes})


@functools.cache
def learned(name: str) -> Any:
    """A model fitted properly, once."""
    settings = CASES[name].settings if name in CASES else {}
    return MODELS[name].preset("smoke", **settings).fit(waves(64, seed=0)[0])


@functools.cache
def quick(name: str) -> Any:
    """A model fitted for a moment, once; nobody may change it."""
    return tiny(name).fit(waves(12, seed=0)[0])


class ModelContract:
    """Tests of one model, called ``name``."""

    def test_learns(self, name: str) -> None:
        context, truth = waves(32, seed=1)
        error = np.sqrt(np.mean((learned(name).predict(context, AT) - truth) ** 2))
        mean = np.sqrt(np.mean((learned("mean").predict(context, AT) - truth) ** 2))
        assert error < CASES.get(name, Case(0.5)).factor * mean

    def test_missing_points_are_removed_points(self, name: str) -> None:
        context, _ = waves(5, seed=2)
        missing = np.zeros((5, 9), dtype=bool)
        missing[[0, 0, 1, 3], [2, 5, 8, 0]] = True
        holes = Samples(context.coords, np.where(missing[..., None], np.nan, context.values))
        pairs = zip(context.coords, context.values, missing, strict=True)
        removed = Samples.from_list([(x[~m], y[~m]) for x, y, m in pairs])
        a, b = (quick(name).predict(c, AT) for c in (holes, removed))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        if name != "mean":  # and they matter: the whole context gives other answers
            assert np.abs(a - quick(name).predict(context, AT))[[0, 1, 3]].max() > 1e-4

    def test_missing_channels(self, name: str) -> None:
        train, context = punctured(waves(12, seed=0)[0]), punctured(waves(4, seed=1)[0], seed=1)
        assert not (context.observed == context.observed[..., :1]).all()
        try:
            y = tiny(name).fit(train).predict(context, AT)
        except CSTError as error:
            assert "missing" in str(error)
            return
        assert y.shape == (4, len(AT), 2) and np.isfinite(y).all()

    def test_order_of_points_and_company_do_not_matter(self, name: str) -> None:
        """Each sample has its own times and length; padding, neighbours and order change nothing."""
        context, _ = waves(4, seed=3)
        rng = np.random.default_rng(0)
        keep = [np.sort(rng.permutation(9)[:k]) for k in (4, 9, 6, 7)]
        curves = [(context.coords[i, k], context.values[i, k]) for i, k in enumerate(keep)]
        at = rng.uniform(0, 1, (4, 6, 1))
        y = quick(name).predict(Samples.from_list(curves), at)
        assert y.shape == (4, 6, 2)
        for i, (t, v) in enumerate(curves):
            back = rng.permutation(len(t))
            alone = quick(name).predict(Samples(t[back], v[back][None]), at[i])
            np.testing.assert_allclose(alone[0], y[i], rtol=1e-4, atol=1e-5)

    def test_queries_of_every_shape(self, name: str) -> None:
        context, _ = waves(3, seed=4)
        y = quick(name).predict(context, AT)
        assert y.shape == (3, len(AT), 2) and y.dtype == np.float64
        for at in (AT.tolist(), AT[:, None], np.broadcast_to(AT[None, :, None], (3, len(AT), 1))):
            np.testing.assert_array_equal(quick(name).predict(context, at), y)
        np.testing.assert_array_equal(
            quick(name).predict(context, context), quick(name).predict(context, context.coords)
        )

    def test_save_and_load(self, name: str, tmp_path) -> None:
        context, _ = waves(3, seed=5)
        quick(name).save(tmp_path / "model")
        again = MODELS[name].load(tmp_path / "model")
        np.testing.assert_array_equal(again.predict(context, AT), quick(name).predict(context, AT))
        assert again.n_parameters_ == quick(name).n_parameters_
        assert {f.name for f in (tmp_path / "model").iterdir()} == {"model.json", "model.safetensors"}
        again.save(tmp_path / "model")  # its own place may be overwritten

    def test_foreign_folders_are_refused(self, name: str, tmp_path) -> None:
        cls = MODELS[name]
        with pytest.raises(CSTError, match="does not exist"):
            cls.load(tmp_path / "nowhere")
        (tmp_path / "note.txt").write_text("mine")
        with pytest.raises(CSTError, match=r"has no model\.json"):
            cls.load(tmp_path)
        with pytest.raises(CSTError, match="left as it is"):
            quick(name).save(tmp_path)
        quick("nearest" if name == "mean" else "mean").save(tmp_path / "other")
        with pytest.raises(CSTError, match=r"holds a '(Mean|CopyNearest)' model"):
            cls.load(tmp_path / "other")
        quick(name).save(tmp_path / "damaged")
        file = tmp_path / "damaged" / "model.json"
        about = json.loads(file.read_text())
        for key in ("settings", "scaling"):
            file.write_text(json.dumps({k: v for k, v in about.items() if k != key}))
            with pytest.raises(CSTError, match=r"cannot be read: .* is missing; save the model again"):
                cls.load(tmp_path / "damaged")

    def test_same_seed_same_answers(self, name: str) -> None:
        train, context = waves(12, seed=0)[0], waves(3, seed=6)[0]
        again, other = (tiny(name, seed=s).fit(train).predict(context, AT) for s in (0, 1))
        answers = quick(name).predict(context, AT)
        np.testing.assert_array_equal(again, answers)
        if issubclass(MODELS[name], Settings):
            assert np.abs(other - answers).max() > 1e-6

    def test_gradients_reach_every_parameter(self, name: str, monkeypatch) -> None:
        if not issubclass(MODELS[name], Settings):
            assert quick(name).n_parameters_ == 0
            return
        reached: set[str] = set()

        def record(run) -> None:
            named = run.network.named_parameters()
            reached.update(k for k, p in named if p.grad is not None and bool(p.grad.any()))

        monkeypatch.setattr(training._Run, "on_after_backward", record)
        model = tiny(name).fit(punctured(waves(12, seed=0)[0]))
        assert reached == {k for k, _ in model.network_.named_parameters()}
        assert model.n_parameters_ == sum(p.numel() for p in model.network_.parameters())

    def test_resumes_from_its_state(self, name: str, tmp_path) -> None:
        train, context = waves(12, seed=0)[0], waves(3, seed=6)[0]
        for _ in range(2):  # the second fit finds the first one's work done
            model = tiny(name).fit(train, state=tmp_path / "state.safetensors")
            np.testing.assert_array_equal(model.predict(context, AT), quick(name).predict(context, AT))
        if issubclass(MODELS[name], Settings):
            with pytest.raises(CSTError, match="other settings or data"):
                tiny(name).fit(waves(12, seed=1)[0], state=tmp_path / "state.safetensors")

    def test_more_axes(self, name: str) -> None:
        rng = np.random.default_rng(0)
        x = rng.uniform(0, 1, (8, 12, 2))
        fields = Samples(x, np.sin(3 * x.sum(-1) + rng.uniform(0, 6, (8, 1))))
        if getattr(MODELS[name], "curves_only", False):
            with pytest.raises(CSTError, match="needs d = 1"):
                tiny(name).fit(fields)
            return
        y = tiny(name).fit(fields).predict(fields, x[0, :5])
        assert y.shape == (8, 5, 1) and np.isfinite(y).all()

    def test_clear_errors(self, name: str, tmp_path) -> None:
        cls, model, (context, _) = MODELS[name], quick(name), waves(3, seed=7)
        for use in (
            lambda m: m.predict(context, AT),
            lambda m: m.save(tmp_path / "x"),
            lambda m: m.n_parameters_,
        ):
            with pytest.raises(ValueError, match="not fitted yet"):
                use(cls.preset("smoke"))
        flat = Samples(np.zeros((2, 3, 2)) + np.arange(3)[:, None], np.zeros((2, 3, 2)))
        with pytest.raises(CSTError, match="2 coordinate axes and 2 channels; the model was fitted with 1 and 2"):
            model.predict(flat, [[0.0, 0.0]])
        with pytest.raises(CSTError, match="1 coordinate axes and 3 channels"):
            model.predict(Samples(AT, np.zeros((2, len(AT), 3))), AT)
        with pytest.raises(CSTError, match="NaN or infinite"):
            model.predict(context, [0.5, np.nan])
        for at in (np.zeros((3, 4, 2)), np.zeros((2, 4, 1)), np.zeros((0, 1)), 0.5):
            with pytest.raises(CSTError, match="at has shape"):
                model.predict(context, at)
        for bad in (AT, [AT, AT]):
            with pytest.raises((CSTError, TypeError), match=r"Samples|violates"):
                model.predict(bad, AT)
        with pytest.raises(CSTError, match="fewer than two observed points"):
            tiny(name).fit(Samples(AT[:1], np.zeros((2, 1, 1))))
        with pytest.raises(CSTError, match="did you mean 'seed'"):
            cls(seeed=1)
        with pytest.raises(CSTError, match="keyword settings only"):
            cls(3)
        with pytest.raises(CSTError, match="unknown preset 'smok'"):
            cls.preset("smok")
        with pytest.raises(CSTError, match="seed=-1: must be at least 0"):
            tiny(name, seed=-1).fit(context)

    def test_warns_outside_the_domain(self, name: str) -> None:
        context, _ = waves(2, seed=8)
        with pytest.warns(UserWarning, match="outside the training domain by up to 50.0%"):
            y = quick(name).predict(context, [1.5])
        assert np.isfinite(y).all()
