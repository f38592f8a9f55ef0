"""The process in which a model of PyPOTS is trained and asked; only `peers` starts it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from cstformer.system.files import read_npz
from cstformer.system.workers import begin_worker

EPOCHS = 10**6  # more than any time limit allows


def main() -> None:
    """Read the folder given as argument, train, and write the answer there."""
    folder = Path(sys.argv[1])
    settings = json.loads((folder / "settings.json").read_text())
    begin_worker(settings["parent"])
    arrays = {name: x.astype(np.float32) for name, x in read_npz(folder / "arrays.npz").items()}
    np.savez(folder / "answer.npz", **train_and_ask(arrays, settings))  # type: ignore[arg-type]


def train_and_ask(arrays: dict[str, np.ndarray], settings: dict[str, Any]) -> dict[str, np.ndarray]:
    """Train for the minutes allowed, keep the best epoch, and fill the gaps of ``shown``."""
    from pypots import imputation
    from pypots.nn.modules.loss import MSE
    from pypots.optim import Adam
    from pypots.utils.random import set_random_seed

    began = time.monotonic()

    class CountingAdam(Adam):
        steps = 0

        def step(self, *args: Any, **options: Any) -> None:
            self.steps += 1
            super().step(*args, **options)

    class TimedMSE(MSE):
        def forward(self, *args: Any, **options: Any) -> Any:
            # PyPOTS has no time limit; after this exception it keeps the best weights so far.
            if time.monotonic() - began > 60 * settings["minutes"] and model.best_model_dict is not None:
                raise KeyboardInterrupt
            return super().forward(*args, **options)

    set_random_seed(settings["seed"])
    _, steps, features = arrays["shown"].shape
    optimiser = CountingAdam(lr=1e-3)
    model = getattr(imputation, settings["name"])(
        n_steps=steps,
        n_features=features,
        epochs=EPOCHS,
        validation_metric=TimedMSE(),
        optimizer=optimiser,
        device="cpu",
        verbose=False,
        **settings["sizes"],
    )
    model.fit({"X": arrays["train"]}, {"X": arrays["hidden"], "X_ori": arrays["complete"]})
    seconds = time.monotonic() - began
    answer = np.asarray(model.impute({"X": arrays["shown"]})).reshape(arrays["shown"].shape)
    weights = sum(p.numel() for p in model.model.parameters() if p.requires_grad)
    numbers = {"parameters": weights, "steps": optimiser.steps, "seconds": seconds}
    return {"answer": answer} | {name: np.asarray(x) for name, x in numbers.items()}
