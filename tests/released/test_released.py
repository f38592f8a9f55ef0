"""Models saved by every released version load, and answer as they did."""

from pathlib import Path

import numpy as np
import pytest

import cstformer as cst
from cstformer.baselines import BASELINES

HERE = Path(__file__).parent
FILES = sorted(path.parent for path in HERE.glob("*/*/answers.npz"))
# Networks compute in float32, whose numbers are 6e-8 apart. The second derivatives of the median start were kept with a
# rounding error of 2.2e-6 (measured against the same weights in float64), so no machine can be nearer than that.
ROUNDING = {"frames-median": 5e-6}
KINDS = {cls.__name__: cls for cls in (cst.CST, *BASELINES.values())}


@pytest.mark.filterwarnings("ignore::cstformer.CSTWarning")  # some queries lie beyond the frame
@pytest.mark.parametrize("folder", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_released_model_answers_as_it_did(folder, tmp_path):
    from make import answers, difference

    kind = next(k for k, cls in KINDS.items() if f'"kind": "{k}"' in (folder / "model" / "model.json").read_text())
    model = KINDS[kind].load(folder / "model")
    context, most = cst.Samples.load(folder / "context.npz"), ROUNDING.get(folder.name, 1e-6)
    with np.load(folder / "answers.npz") as kept:
        assert difference(answers(model, context), dict(kept)) < most
        model.save(tmp_path / "again")  # and in the format of today
        assert difference(answers(KINDS[kind].load(tmp_path / "again"), context), dict(kept)) < most


def test_every_kind_of_model_is_among_them():
    names = {path.name for path in FILES if path.parent.name == "0.1.0"}
    assert {"ragged", "joint-nystrom", "paper", "frames-smooth", "frames-median", "frames-motion"} <= names
    assert len(names) > 30
