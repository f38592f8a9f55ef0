"""Small models of every kind, kept as the files of a release, and their answers.

``python tests/released/make.py 0.2.0`` trains them with the code at hand and writes ``tests/released/0.2.0``: do this
once, when a version is released. ``test_released.py`` loads the files of every release and compares the answers.

``python tests/released/make.py --compare tests/released/0.1.0`` trains them again and prints how far the new answers
are from the kept ones. On the machine that wrote the files a refactoring must print zeros: the same seed trains to
the same digits. To compare two versions of the code on any machine, write the files with one of them (``PYTHONPATH``
chooses the code) and compare with the other.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import cstformer as cst
from cstformer.baselines import BASELINES

HERE = Path(__file__).parent
QUICK: dict[str, Any] = {"steps": 12, "seed": 3, "device": "cpu", "threads": 1}


def curves(missing: bool = False) -> cst.Samples:
    """Nine damped waves in two channels at irregular times; ragged and with missing channels if asked."""
    rng = np.random.default_rng(0)
    t = np.sort(rng.uniform(2, 5, (9, 8)), axis=1)
    phase = rng.uniform(0, 2 * np.pi, (9, 1))
    y = np.stack([np.sin(3 * t + phase), 40 + 10 * np.exp(-t / 5) * np.cos(2 * t + phase)], -1)
    y += 0.05 * rng.normal(size=y.shape) * [1, 10]
    if missing:
        y[rng.random(y.shape) < 0.15] = np.nan
        y[::3, 6:] = np.nan
    return cst.Samples(t, y, coord_names=["t"], value_names=["a", "b"], units={"t": "s"})


def pixels(count: int = 12, channels: int = 1) -> np.ndarray:
    """A bump that crosses a textured frame of 8 × 10 pixels, and noise: (T, 8, 10, channels)."""
    rng = np.random.default_rng(1)
    t, r, c = np.meshgrid(np.arange(count), np.arange(8), np.arange(10), indexing="ij")
    movie = 10 * np.exp(-((r - 2 - 0.3 * t) ** 2 + (c - 1 - 0.6 * t) ** 2) / 5) + np.sin(r + 2 * c / 3)
    movie = movie[..., None] * (1 + np.arange(channels)) + 0.3 * rng.normal(size=(*movie.shape, channels))
    return movie


def movie(periodic: bool = False, channels: int = 1, patch: tuple[int, int] = (4, 5)) -> cst.Samples:
    """Overlapping windows of six frames."""
    return cst.frames_to_samples(pixels(channels=channels), patch, window=6, stride=1, periodic=periodic)


def holes() -> cst.Samples:
    """A movie with missing pixels, of a patch that does not divide the frame."""
    frames = pixels()
    frames[3, :4, :5] = np.nan
    mask = np.ones((8, 10), dtype=bool)
    mask[0, :3] = False
    return cst.frames_to_samples(frames, (3, 4), window=6, stride=1, mask=mask, times=np.arange(12) * 0.1)


def corrupt(frames: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Noise on three pixels of ten."""
    hit = torch.rand(frames.shape[:-1], generator=generator)[..., None] < 0.3
    return torch.where(hit, frames + 8 * torch.randn(frames.shape, generator=generator).to(frames), frames)


def model(**settings: Any) -> cst.CST:
    """CST of a few weights."""
    return cst.CST.preset("smoke", **QUICK | settings)


def lazily() -> tuple[cst.CST, cst.Samples]:
    """CST trained on a movie that is read from disk."""
    import zarr

    with tempfile.TemporaryDirectory() as folder:
        zarr.save_array(f"{folder}/movie.zarr", pixels().astype(np.float32))
        lazy = cst.LazyFrames(f"{folder}/movie.zarr", patch=(4, 5), window=6, stride=1)
        return model().fit(lazy), lazy[[0, 3]]


def fitted(model: Any, samples: cst.Samples, **options: Any) -> tuple[Any, cst.Samples]:
    """The model after its training, and the samples to ask it about."""
    return model.fit(samples, **options), samples[np.arange(0, len(samples), 3)]


CASES: dict[str, Callable[[], tuple[Any, cst.Samples]]] = {
    "ragged": lambda: fitted(model(), curves(missing=True)),
    "cubic": lambda: fitted(model(start="cubic", nearness="always", mu=1e-4), curves()),
    "float64": lambda: fitted(model(start="hermite", precision="float64", coord_noise=0.01, p=3.0), curves()),
    "joint-nystrom": lambda: fitted(model(pattern="joint", attention_kind="nystrom", landmarks=4), curves()),
    "paper": lambda: fitted(
        cst.CST.preset("paper", **QUICK | {"feedforward": 64, "steps": 20, "dummies": 6}), curves()
    ),
    "frames-smooth": lambda: fitted(model(), movie()),
    "frames-holes": lambda: fitted(model(hide=0.3), holes()),
    "frames-linear": lambda: fitted(model(start="linear", order=1), movie(channels=2)),
    "frames-joint": lambda: fitted(model(pattern="joint", start="cubic"), movie()),
    "frames-periodic": lambda: fitted(model(), movie(periodic=True)),
    "frames-median": lambda: fitted(model(start="median", order=1), movie(channels=3), given=corrupt),
    "frames-motion": lambda: fitted(model(start="motion", order=1), movie()),
    "frames-lazy": lazily,
}


def _rival(name: str, samples: Callable[[], cst.Samples], **settings: Any) -> Callable[[], tuple[Any, cst.Samples]]:
    steps = {k: v for k, v in QUICK.items() if k in BASELINES[name].__dataclass_fields__}
    return lambda: fitted(BASELINES[name].preset("smoke", **steps | settings), samples())


for _name in ("mean", "nearest", "linear", "cubic", "gp", "transformer", "lstm", "latent-ode", "lfads"):
    CASES[f"{_name}-curves"] = _rival(_name, lambda: curves(missing=True))
for _name in ("gp", "wiener", "space-time-wiener", "transformer-linear", "lstm", "lfads", "vit3d", "vivit", "fno3d"):
    CASES[f"{_name}-movie"] = _rival(_name, movie)
for _name in ("fno2d", "convlstm", "convgru", "median", "switching-median", "nlm", "copy"):
    CASES[f"{_name}-movie"] = _rival(_name, lambda: movie(channels=2))
CASES["transformer-periodic"] = _rival("transformer", lambda: movie(periodic=True))


def queries(context: cst.Samples) -> np.ndarray:
    """Coordinates at and between the observed ones, the same for all samples."""
    if context.layout is None:
        return np.linspace(2.3, 4.7, 13)[:, None]
    first, last = (float(f(context.coords[..., 0])) for f in (np.min, np.max))
    whole = cst.frame_queries(context.layout, np.linspace(first, last, 4))
    return np.concatenate([whole, whole[:3] + np.array([0.07, 0.6, 0.3])])


def answers(model: Any, context: cst.Samples) -> dict[str, np.ndarray]:
    """Values, and of CST first and second derivatives, at `queries`."""
    at = queries(context)
    found = {"values": model.predict(context, at)}
    if isinstance(model, cst.CST):
        d = context.d
        first = tuple(int(i == 0) for i in range(d))
        second = tuple(int(i == 0) + int(i == d - 1) for i in range(d))
        wanted = {"first": first, "second": second}
        found |= {name: model.derivative(context, at, index) for name, index in wanted.items()}
    return found


def difference(found: dict[str, np.ndarray], kept: dict[str, np.ndarray]) -> float:
    """Largest difference of answers, over the largest answer of their kind."""
    assert set(found) == set(kept)
    return max(float(np.abs(found[k] - kept[k]).max() / np.abs(kept[k]).max()) for k in kept)


def main() -> None:
    """Write the files of a release, or compare with them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("version", nargs="?", help="release, whose files are written to tests/released/VERSION")
    parser.add_argument("--compare", metavar="FOLDER", type=Path, help="train again and compare with these files")
    parser.add_argument("--only", help="cases, with commas")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    for name in args.only.split(",") if args.only else CASES:
        trained, context = CASES[name]()
        found = answers(trained, context)
        if args.compare is not None:
            with np.load(args.compare / name / "answers.npz") as kept:
                print(f"{name:24} {difference(found, dict(kept)):.2e}", flush=True)
            continue
        folder = Path(args.version) if "/" in args.version else HERE / args.version
        (folder / name).mkdir(parents=True, exist_ok=True)
        trained.save(folder / name / "model")
        context.save(folder / name / "context.npz")
        np.savez_compressed(folder / name / "answers.npz", **found)
        print(f"wrote {folder.name}/{name}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
