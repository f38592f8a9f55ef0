"""What every model must do, CST included; `test_contract.py` runs it for each name.

A new rival needs nothing here but, if the error of its smoke preset is far from half of the mean predictor's, an entry
in `CURVE_CASES` or `MOVIE_CASES`. There are two problems: curves with two channels, and movies of a travelling wave
with two colours, whose values are known at any time. A rival for frames alone runs the second only.
"""

from __future__ import annotations

import copy
import functools
import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.exceptions import NotFittedError

from cstformer.baselines import BASELINES
from cstformer.baselines.sequences import SequenceBaseline
from cstformer.data.layout import PatchLayout
from cstformer.data.patches import frame_queries
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.cst import CST
from cstformer.models.model import Model
from cstformer.models.neural import NeuralModel
from cstformer.training.team import Alone

MODELS: dict[str, type[Model]] = {**BASELINES, "cst": CST}
CURVE_MODELS = [name for name, cls in MODELS.items() if not cls.frames_only]
FRAME_MODELS = [name for name in MODELS if name not in CURVE_MODELS]
MOVIE_MODELS = [name for name in CURVE_MODELS if not MODELS[name].curves_only]  # curves as well as movies
MOMENTS = 9  # points of a curve, frames of a movie


@dataclass(frozen=True)
class Case:
    """How well a model must do: its root mean squared error over that of the mean predictor."""

    factor: float
    settings: dict[str, Any] = field(default_factory=dict)


CURVE_CASES = {
    "mean": Case(1 + 1e-9),
    "nearest": Case(0.6),
    "linear": Case(0.25),
    "cubic": Case(0.1),
    "gp": Case(0.05),
    "co-kriging": Case(0.05),
    "last": Case(0.8),
    "boosting": Case(0.25),  # that of the line which it corrects
    "transformer": Case(0.25, dict(steps=250, batch=16, learning_rate=5e-3)),
    # Below what its start alone reaches, the linear interpolation above.
    "cst": Case(0.2, dict(steps=200, order=0, start="linear", learning_rate=5e-3)),
    "transformer-linear": Case(0.4, dict(steps=150, batch=16, learning_rate=5e-3)),
    "transformer-spline": Case(0.4, dict(steps=150, batch=16, learning_rate=5e-3)),
    "lstm": Case(0.2, dict(steps=200, learning_rate=1e-2)),
    "latent-ode": Case(0.5, dict(steps=200, learning_rate=2e-2)),
    "lfads": Case(0.5, dict(steps=80, learning_rate=2e-2)),
}
MOVIE_CASES = {
    "mean": Case(1 + 1e-9),
    "nearest": Case(0.6),
    "linear": Case(0.25),
    "cubic": Case(0.1),
    "gp": Case(0.05),
    "co-kriging": Case(0.05),
    "transformer": Case(0.35, dict(steps=150, batch=16, learning_rate=1e-2)),
    "transformer-linear": Case(0.4, dict(steps=150, batch=16, learning_rate=1e-2)),
    "transformer-spline": Case(0.4, dict(steps=150, batch=16, learning_rate=1e-2)),
    "cst": Case(0.3, dict(steps=40, order=0, start="linear", learning_rate=5e-3)),
    "lstm": Case(0.2, dict(steps=200, learning_rate=1e-2)),
    "convlstm": Case(0.4, dict(steps=60, learning_rate=2e-2)),
    "convgru": Case(0.3, dict(steps=20, learning_rate=2e-2)),
    "blind-spot": Case(0.6, dict(steps=80, learning_rate=1e-2, reach=2)),
    "copy": Case(0.4),
    "nlm": Case(0.3),
    "latent-ode": Case(0.4, dict(steps=100, learning_rate=2e-2)),
    "lfads": Case(0.5, dict(steps=80, learning_rate=1e-2)),
    "fno2d": Case(0.7, dict(steps=80, learning_rate=2e-2)),
    "vit3d": Case(0.4, dict(steps=60, learning_rate=1e-2)),
    "vivit": Case(0.4, dict(steps=60, learning_rate=1e-2)),
    "fno3d": Case(0.3, dict(steps=40, learning_rate=1e-2)),
}


def _waves(angle: np.ndarray) -> np.ndarray:
    """Two channels (…, 2) of a phase."""
    return np.stack([np.sin(angle), 2 + 3 * np.cos(angle)], axis=-1)


def _times(rng: np.random.Generator, count: int) -> np.ndarray:
    """Irregular times (count, MOMENTS) from 0 to 1, each sample its own."""
    t = np.sort(rng.uniform(0.03, 0.97, (count, MOMENTS)), axis=1)
    t[:, 0], t[:, -1] = 0, 1
    return t


class Curves:
    """Sinusoids of random phase in two channels."""

    group = 1  # points a moment
    names: dict[str, Any] = {}  # noqa: RUF012
    at = np.linspace(0, 1, 21)[:, None]
    outside = [[1.5]]  # noqa: RUF012
    cases = CURVE_CASES

    @staticmethod
    def make(count: int, seed: int) -> tuple[Samples, np.ndarray]:
        """Samples, and their values at `at`."""
        rng = np.random.default_rng(seed)
        t = _times(rng, count)
        phase = rng.uniform(0, 2 * np.pi, (count, 1))
        return Samples(t, _waves(2 * np.pi * t + phase)), _waves(2 * np.pi * Curves.at[None, :, 0] + phase)


class Movies:
    """A plane wave of random phase that travels over frames of 8 × 8 pixels, cut into four patches."""

    layout = PatchLayout((8, 8), (4, 4), 2)
    group = 4
    names = dict(coord_names=("t", "row", "col"), layout=layout)  # noqa: RUF012
    at = frame_queries(layout, np.linspace(0, 1, 6))
    outside = [[1.5, 1.5, 1.5]]  # noqa: RUF012
    cases = MOVIE_CASES

    @staticmethod
    def make(count: int, seed: int) -> tuple[Samples, np.ndarray]:
        """Samples, and their values at `at`."""
        rng = np.random.default_rng(seed)
        coords = np.stack([frame_queries(Movies.layout, t) for t in _times(rng, count)])
        phase = rng.uniform(0, 2 * np.pi, (count, 1, 1, 1))
        pixel = np.arange(4) - 1.5

        def u(x: np.ndarray) -> np.ndarray:
            t, row, col = np.moveaxis(x, -1, 0)[..., None, None]
            row, col = row + pixel[:, None], col + pixel
            angle = 2 * np.pi * (t - (row + col) / 16) + phase
            return _waves(angle).reshape(count, x.shape[1], -1)

        return Samples(coords, u(coords), **Movies.names), u(Movies.at[None])


def punctured(samples: Samples, problem: Any, seed: int = 0) -> Samples:
    """The same with some moments missing, and some channels of others."""
    missing = np.random.default_rng(seed).random(samples.values.shape) < 0.15
    moments = missing.reshape(len(samples), MOMENTS, problem.group, -1)  # a view
    moments[:, :3] = moments[:, -1:] = False
    moments[::3, 4] = True
    return Samples(samples.coords, np.where(missing, np.nan, samples.values), **problem.names)


def smoke(name: str, **changes: Any) -> Any:
    """A small model; sequence models need no estimate of the noise, which takes longer than to fit them."""
    noise = {"noise": 0.0} if issubclass(MODELS[name], SequenceBaseline) else {}
    return MODELS[name].preset("smoke", **{**noise, **changes})


def tiny(name: str, **changes: Any) -> Any:
    """A model that fits in a moment."""
    return smoke(name, **({"steps": 4} if is_trained(name) else {}), **changes)


def is_trained(name: str) -> bool:
    """Whether the training loop trains this model."""
    return issubclass(MODELS[name], NeuralModel)


@functools.cache
def learned(name: str, problem: Any) -> Any:
    """A model fitted properly, once."""
    settings = problem.cases[name].settings if name in problem.cases else {}
    return smoke(name, **settings).fit(problem.make(64, seed=0)[0])


@functools.cache
def quick(name: str, problem: Any) -> Any:
    """A model fitted for a moment, once; nobody may change it."""
    return tiny(name).fit(problem.make(12, seed=0)[0])


class Answers:
    """What a model, called ``name``, answers on one problem."""

    problem: Any

    def test_learns(self, name: str) -> None:
        context, truth = self.problem.make(32, seed=1)
        error, mean = (
            np.sqrt(np.mean((learned(n, self.problem).predict(context, self.problem.at) - truth) ** 2))
            for n in (name, "mean")
        )
        assert error < self.problem.cases.get(name, Case(0.5)).factor * mean

    def test_missing_points_are_removed_points(self, name: str) -> None:
        problem, model = self.problem, quick(name, self.problem)
        context, _ = problem.make(5, seed=2)
        missing = np.zeros((5, MOMENTS), dtype=bool)
        missing[[0, 0, 1, 3], [2, 5, 8, 0]] = True
        missing = missing.repeat(problem.group, axis=1)
        holes = Samples(context.coords, np.where(missing[..., None], np.nan, context.values), **problem.names)
        pairs = zip(context.coords, context.values, missing, strict=True)
        removed = Samples.from_list([(x[~m], y[~m]) for x, y, m in pairs], **problem.names)
        a, b = (model.predict(c, problem.at) for c in (holes, removed))
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
        if name != "mean":  # and they matter: the whole context gives other answers
            assert np.abs(a - model.predict(context, problem.at))[[0, 1, 3]].max() > 1e-4

    def test_missing_channels(self, name: str) -> None:
        problem = self.problem
        train = punctured(problem.make(12, seed=0)[0], problem)
        context = punctured(problem.make(4, seed=1)[0], problem, seed=1)
        assert not (context.observed == context.observed[..., :1]).all()
        try:
            y = tiny(name).fit(train).predict(context, problem.at)
        except CSTError as error:
            assert "missing" in str(error)
            return
        assert y.shape == (4, len(problem.at), context.c) and np.isfinite(y).all()

    def test_order_of_points_and_company_do_not_matter(self, name: str) -> None:
        """Each sample has its own times and length; padding, neighbours and order change nothing."""
        problem, model = self.problem, quick(name, self.problem)
        context, _ = problem.make(4, seed=3)
        rng = np.random.default_rng(0)
        moment = np.arange(context.n) // problem.group
        keep = [np.isin(moment, rng.permutation(MOMENTS)[:k]) for k in (4, 9, 6, 7)]
        parts = [(context.coords[i, k], context.values[i, k]) for i, k in enumerate(keep)]
        at = np.tile(problem.at[: 6 * problem.group], (4, 1, 1))
        at[..., 0] = rng.uniform(0, 1, (4, 6)).repeat(problem.group, axis=1)
        y = model.predict(Samples.from_list(parts, **problem.names), at)
        assert y.shape == (*at.shape[:2], context.c)
        for i, (x, v) in enumerate(parts):
            back = rng.permutation(len(x))
            alone = model.predict(Samples(x[back][None], v[back][None], **problem.names), at[i])
            np.testing.assert_allclose(alone[0], y[i], rtol=1e-4, atol=1e-5)

    def test_queries_of_every_shape(self, name: str) -> None:
        at, model = self.problem.at, quick(name, self.problem)
        context, _ = self.problem.make(3, seed=4)
        y = model.predict(context, at)
        assert y.shape == (3, len(at), context.c) and y.dtype == np.float64
        for same in (at.tolist(), np.tile(at, (3, 1, 1)), *([at[:, 0]] if context.d == 1 else [])):
            np.testing.assert_array_equal(model.predict(context, same), y)
        np.testing.assert_array_equal(model.predict(context, context), model.predict(context, context.coords))

    def test_save_and_load(self, name: str, tmp_path) -> None:
        at, model = self.problem.at, quick(name, self.problem)
        context, _ = self.problem.make(3, seed=5)
        model.save(tmp_path / "model")
        again = MODELS[name].load(tmp_path / "model")
        np.testing.assert_array_equal(again.predict(context, at), model.predict(context, at))
        assert again.n_parameters_ == model.n_parameters_
        assert {f.name for f in (tmp_path / "model").iterdir()} == {"model.json", "model.safetensors"}
        again.save(tmp_path / "model")  # its own place may be overwritten

    def test_extrapolates_only_when_asked(self, name: str) -> None:
        context, _ = self.problem.make(2, seed=8)
        model = quick(name, self.problem)
        with pytest.raises(CSTError, match=r"outside the training domain by up to 50.0%.*extrapolate=True"):
            model.predict(context, self.problem.outside)
        with pytest.warns(UserWarning, match="outside the training domain by up to 50.0%"):
            y = model.predict(context, self.problem.outside, extrapolate=True)
        assert np.isfinite(y).all()


class Contract(Answers):
    """And what does not depend on the problem: each model shows it on one."""

    def test_foreign_folders_are_refused(self, name: str, tmp_path) -> None:
        cls, model = MODELS[name], quick(name, self.problem)
        with pytest.raises(CSTError, match="does not exist"):
            cls.load(tmp_path / "nowhere")
        (tmp_path / "note.txt").write_text("mine")
        with pytest.raises(CSTError, match=r"has no model\.json"):
            cls.load(tmp_path)
        with pytest.raises(CSTError, match="left as it is"):
            model.save(tmp_path)
        quick("nearest" if name == "mean" else "mean", self.problem).save(tmp_path / "other")
        with pytest.raises(CSTError, match=r"holds a '(Mean|CopyNearest)' model"):
            cls.load(tmp_path / "other")
        model.save(tmp_path / "damaged")
        file = tmp_path / "damaged" / "model.json"
        about = json.loads(file.read_text())
        for key in ("settings", "scaling"):
            file.write_text(json.dumps({k: v for k, v in about.items() if k != key}))
            with pytest.raises(CSTError, match=r"cannot be read: .* is missing; save the model again"):
                cls.load(tmp_path / "damaged")
        context, _ = self.problem.make(3, seed=5)
        for key in about:  # what the answers do not need may be missing, everything else is noticed
            file.write_text(json.dumps({k: v for k, v in about.items() if k != key}))
            try:
                again = cls.load(tmp_path / "damaged")
            except CSTError as error:
                assert len(str(error).splitlines()) == 1
            else:
                y = model.predict(context, self.problem.at)
                np.testing.assert_array_equal(again.predict(context, self.problem.at), y, err_msg=key)

    def test_same_seed_same_answers(self, name: str) -> None:
        make, at = self.problem.make, self.problem.at
        train, context = make(12, seed=0)[0], make(3, seed=6)[0]
        again, other = (tiny(name, seed=s).fit(train).predict(context, at) for s in (0, 1))
        answers = quick(name, self.problem).predict(context, at)
        np.testing.assert_array_equal(again, answers)
        if is_trained(name):
            assert np.abs(other - answers).max() > 1e-6

    def test_gradients_reach_every_parameter(self, name: str, monkeypatch) -> None:
        if not is_trained(name):
            assert quick(name, self.problem).n_parameters_ == 0
            return
        reached: set[str] = set()

        def join(team, network, loss) -> None:
            team.loss, team.network = loss, network

        def backward(team, loss) -> None:
            loss.backward()
            named = team.network.named_parameters()
            reached.update(k for k, p in named if p.grad is not None and bool(p.grad.any()))

        monkeypatch.setattr(Alone, "join", join)
        monkeypatch.setattr(Alone, "backward", backward)
        model = tiny(name).fit(punctured(self.problem.make(12, seed=0)[0], self.problem))
        assert reached == {k for k, _ in model.network_.named_parameters()}
        assert model.n_parameters_ == sum(p.numel() for p in model.network_.parameters())

    def test_resumes_from_its_state(self, name: str, tmp_path) -> None:
        make, at = self.problem.make, self.problem.at
        train, context = make(12, seed=0)[0], make(3, seed=6)[0]
        expected = quick(name, self.problem).predict(context, at)
        for _ in range(2):  # the second fit finds the first one's work done
            model = tiny(name).fit(train, state=tmp_path / "state.safetensors")
            np.testing.assert_array_equal(model.predict(context, at), expected)
        if is_trained(name):
            with pytest.raises(CSTError, match="other settings or data"):
                tiny(name).fit(make(12, seed=1)[0], state=tmp_path / "state.safetensors")

    def test_learns_from_a_corruption_or_refuses_it(self, name: str, tmp_path) -> None:
        at, (train, _) = self.problem.at, self.problem.make(12, seed=0)
        seen: list[torch.Tensor] = []

        def corrupt(y: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
            seen.append(y)
            return y + torch.randn(y.shape, generator=generator).to(y)

        model = tiny(name)
        if not MODELS[name].learns_corruption:
            with pytest.raises(CSTError, match=f"^{type(model).__name__} cannot learn from given=.*; leave it out$"):
                model.fit(train, given=corrupt)
            with pytest.raises(NotFittedError):
                model.predict(train, at)
            return
        y = model.fit(train, given=corrupt).predict(train, at)
        assert np.isfinite(y).all()
        assert len(seen) > model.report_.steps > 0  # drawn anew in each step, and for validation
        assert model.report_.history != quick(name, self.problem).report_.history
        # Clean values in the user's units, of curves (B, n, c) or of frames (B, T, H, W, C).
        clean = {round(v, 2) for v in train.values[train.observed].tolist()}
        assert all(len(x) <= 12 * 16 and x.shape[-1] == 2 for x in seen)
        assert {round(v, 2) for v in seen[-1].flatten().tolist()} <= clean
        model.save(tmp_path / "model")  # without the corruption, which may be any function
        np.testing.assert_array_equal(MODELS[name].load(tmp_path / "model").predict(train, at), y)

    def test_a_failed_fit_leaves_no_fitted_model(self, name: str, tmp_path, monkeypatch) -> None:
        model, (train, _) = copy.deepcopy(quick(name, self.problem)), self.problem.make(12, seed=0)
        fit = MODELS[name]._fit

        def fail(self, *args) -> None:
            fit(self, *args)
            raise RuntimeError("disk full")

        with monkeypatch.context() as patch:
            patch.setattr(MODELS[name], "_fit", fail)
            with pytest.raises(RuntimeError, match="disk full"):
                model.fit(train)
        for use in (lambda: model.predict(train, self.problem.at), lambda: model.save(tmp_path / "model")):
            with pytest.raises(NotFittedError, match="not fitted yet; call fit"):
                use()
        assert not list(tmp_path.iterdir())
        y = model.fit(train).predict(train, self.problem.at)
        np.testing.assert_array_equal(y, quick(name, self.problem).predict(train, self.problem.at))

    def test_unknown_settings_are_refused_by_name(self, name: str, tmp_path) -> None:
        cls, model = MODELS[name], quick(name, self.problem)
        for setting in model.settings():
            wrong = f"{setting}_"
            with pytest.raises(CSTError, match=f"^unknown setting.* '{wrong}'; did you mean '{setting}'[?] Valid: "):
                cls(**{wrong: 1})
        for wrong in {*CST().settings(), "curtains"} - set(model.settings()):  # a rival has only what it uses
            with pytest.raises(CSTError, match=f"unknown setting.* '{wrong}'"):
                cls.preset("smoke", **{wrong: 1})
        model.save(tmp_path / "model")
        file = tmp_path / "model" / "model.json"
        file.write_text(file.read_text().replace('"seed":', '"sede":'))
        with pytest.raises(CSTError, match=r"unknown setting.* 'sede'; did you mean 'seed'"):
            cls.load(tmp_path / "model")

    def test_clear_errors(self, name: str, tmp_path) -> None:
        cls, model, at = MODELS[name], quick(name, self.problem), self.problem.at
        context, _ = self.problem.make(3, seed=7)
        d, c = context.d, context.c
        for use in (
            lambda m: m.predict(context, at),
            lambda m: m.save(tmp_path / "x"),
            lambda m: m.n_parameters_,
        ):
            with pytest.raises(NotFittedError, match="not fitted yet"):
                use(cls.preset("smoke"))
        flat = Samples(np.zeros((2, 3, 2)) + np.arange(3)[:, None], np.zeros((2, 3, 2)))
        with pytest.raises(CSTError, match=f"2 coordinate axes and 2 channels; the model was fitted with {d} and {c}"):
            model.predict(flat, [[0.0, 0.0]])
        with pytest.raises(CSTError, match=f"{d} coordinate axes and 3 channels"):
            model.predict(Samples(context.coords, np.zeros((3, context.n, 3))), at)
        with pytest.raises(CSTError, match="NaN or infinite"):
            model.predict(context, np.where(np.arange(len(at))[:, None] == 1, np.nan, at))
        for bad in (np.zeros((3, 4, 2)), np.zeros((2, 4, d)), np.zeros((0, d)), 0.5):
            with pytest.raises(CSTError, match="at has shape"):
                model.predict(context, bad)
        for bad in (at, [at, at]):
            with pytest.raises((CSTError, TypeError), match=r"Samples|violates"):
                model.predict(bad, at)
        with pytest.raises(CSTError, match="fewer than two observed points"):
            tiny(name).fit(Samples(at[:1], np.zeros((2, 1, 1))))
        with pytest.raises(CSTError, match="keyword settings only"):
            cls(3)
        with pytest.raises(CSTError, match="unknown preset 'smok'"):
            cls.preset("smok")
        with pytest.raises(CSTError, match="seed=-1: must be at least 0"):
            tiny(name, seed=-1).fit(context)


class CurveContract(Contract):
    """The contract on curves, and on scattered points in the plane."""

    problem = Curves

    def test_more_axes(self, name: str) -> None:
        rng = np.random.default_rng(0)
        x = rng.uniform(0, 1, (8, 12, 2))
        fields = Samples(x, np.sin(3 * x.sum(-1) + rng.uniform(0, 6, (8, 1))))
        if issubclass(MODELS[name], SequenceBaseline) or MODELS[name].curves_only:
            with pytest.raises(CSTError, match=r"needs curves \(d = 1\)"):
                tiny(name).fit(fields)
            return
        y = tiny(name).fit(fields).predict(fields, x[0, :5])
        assert y.shape == (8, 5, 1) and np.isfinite(y).all()


class MovieAnswers(Answers):
    """Answers on movies."""

    problem = Movies

    def test_off_grid_patches(self, name: str) -> None:
        """Patches half a patch apart overlap: their common pixels are the same picture's."""
        context, _ = Movies.make(2, seed=9)
        y = quick(name, Movies).predict(context, [[0.5, 1.5, 1.5], [0.5, 1.5, 3.5]]).reshape(2, 2, 4, 4, 2)
        if issubclass(MODELS[name], SequenceBaseline):
            np.testing.assert_allclose(y[:, 0, :, 2:], y[:, 1, :, :2], rtol=1e-4, atol=1e-5)
        assert np.isfinite(y).all()


class FramesOnlyContract(MovieAnswers, Contract):
    """The whole contract for rivals that refuse curves."""

    def test_curves_are_refused_by_name(self, name: str) -> None:
        with pytest.raises(CSTError, match=f"{MODELS[name].__name__} needs the patches of a movie"):
            tiny(name).fit(Curves.make(6, seed=0)[0])
