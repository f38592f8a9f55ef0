"""What CONTRIBUTING.md says about adding things is true: each of its blocks is run and what it adds is used."""

import dataclasses
import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest

import cstformer as cst
from cstformer import cli
from cstformer.baselines import BASELINES
from cstformer.experiments import registry
from cstformer.starts import curves
from cstformer.training.settings import NetworkSettings, Settings, UserSettings, setting_fields

ROOT = Path(__file__).parents[1]
BLOCKS = dict(
    re.findall(r"^### … an? ([\w ]+)$.*?^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S)
)


def run(block: str, imports: str, name: str, monkeypatch) -> dict:
    """Names that a block defines, as a module of this name after these imports."""
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)  # dataclasses look their annotations up there
    exec(compile("from __future__ import annotations\n" + imports + block, f"<{name}>", "exec"), module.__dict__)
    return module.__dict__


def sines(monkeypatch) -> dict:
    imports = "import numpy as np\nfrom cstformer import Samples\n"
    return run(BLOCKS["data set"], imports, "sines", monkeypatch)


def test_every_recipe_is_run():
    assert set(BLOCKS) == {"setting", "start", "rival", "data set", "experiment"}


def test_a_setting(monkeypatch, capsys, tmp_path):
    lines = "".join("    " + line for line in BLOCKS["setting"].splitlines(keepends=True))
    imports = "from dataclasses import dataclass\nfrom cstformer.training.settings import setting\n"
    group = f"@dataclass(kw_only=True, eq=False, repr=False)\nclass Group:\n{lines}"
    field = dataclasses.fields(run(group, imports, "group", monkeypatch)["Group"])[0]
    # As if the line stood in a group that CST has joined.
    for owner in (NetworkSettings, Settings, UserSettings, cst.CST):
        monkeypatch.setitem(owner.__dataclass_fields__, field.name, field)
        monkeypatch.setattr(owner, field.name, field.default, raising=False)
    assert setting_fields()["temperature"].default == 1.0
    with pytest.raises(SystemExit):
        cli.main(["fit", "--help"])
    assert "--temperature" in capsys.readouterr().out
    curve = tmp_path / "curve.csv"
    curve.write_text("t,y\n0,1\n1,2\n")
    assert cli.main(["fit", str(curve), "--out", str(tmp_path / "model"), "--temperature", "0"]) == 2
    assert "--temperature 0.0: must be at least 0.1" in capsys.readouterr().err


def test_a_start(monkeypatch):
    monkeypatch.setattr(curves, "STARTS", dict(curves.STARTS))
    imports = "from cstformer.starts.curves import STARTS\nfrom cstformer.taylor import series\n"
    run(BLOCKS["start"], imports, "new_start", monkeypatch)
    field = setting_fields()["start"]
    metadata = dict(field.metadata) | {"choices": (*field.metadata["choices"], "mean")}
    monkeypatch.setattr(field, "metadata", metadata)
    samples = cst.Samples(np.linspace(0, 1, 5), np.arange(40.0).reshape(8, 5))
    model = cst.CST.preset("smoke", start="mean", steps=1, learning_rate=0.0).fit(samples)
    # An untrained network answers with its start.
    np.testing.assert_allclose(model.predict(samples, [0.3])[:, 0, 0], samples.values[..., 0].mean(1), rtol=1e-5)
    np.testing.assert_allclose(model.derivative(samples, [0.3], (1,)), 0, atol=1e-5)


def test_a_rival(monkeypatch, tmp_path):
    imports = (
        "import math\nfrom dataclasses import dataclass\nfrom typing import ClassVar\nfrom torch import nn\n"
        "from cstformer.baselines import BASELINES\nfrom cstformer.training.settings import setting\n"
        "from cstformer.baselines.sequences import Reconstructor, SequenceBaseline, TimeSeries\n"
    )
    monkeypatch.setitem(BASELINES, "bottleneck", None)  # put back afterwards
    rival = run(BLOCKS["rival"], imports, "bottleneck", monkeypatch)["Bottleneck"]
    assert BASELINES["bottleneck"] is rival
    train, _ = sines(monkeypatch)["make_sines"](40, noise=0.0)
    model = rival.preset("smoke", hidden=8, steps=60, learning_rate=2e-2, noise=0.0).fit(train)
    error = np.square(model.predict(train, train.coords) - train.values).mean()
    assert error < 0.5 * train.values.var()
    model.save(tmp_path / "model")
    again = rival.load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(train, [0.5]), model.predict(train, [0.5]))


def test_a_data_set(monkeypatch):
    samples, clean = sines(monkeypatch)["make_sines"](count=30, noise=0.1)
    assert samples.values.shape == clean.shape == (30, 12, 1)
    assert np.std(samples.values - clean) == pytest.approx(0.1, rel=0.1)


def test_an_experiment(monkeypatch, tmp_path):
    imports = (
        "import numpy as np\nfrom dataclasses import dataclass, field\nfrom cstformer import CST\n"
        "from cstformer.baselines import BASELINES\n"
        "from cstformer.experiments.base import Cell, Experiment, table_row\n"
        "from cstformer.experiments.figures import write_figures\n"
        "from cstformer.experiments.metrics import paired_tests, summary\n"
        "from cstformer.experiments.training import ended_notes, finished_result, train_cell\n"
        "from sines import make_sines\n"
    )
    sines(monkeypatch)
    experiment = run(BLOCKS["experiment"], imports, "cstformer.experiments.sines.experiment", monkeypatch)
    monkeypatch.setattr(registry, "EXPERIMENTS", (*registry.EXPERIMENTS, "sines"))
    assert registry.load_experiment("sines") is experiment["EXPERIMENT"]
    # In this process, where the module exists under its name.
    from cstformer.experiments.base import run_experiment

    result = run_experiment(experiment["EXPERIMENT"], "smoke", tmp_path / "run", quiet=True, jobs=1)
    assert [row["model"] for row in result["table"]] == ["CST", "linear"]
    assert result["tests"][0]["name"] == "CST vs linear" and result["tests"][0]["n"] == 10
    assert json.loads((tmp_path / "run" / "result.json").read_text())["experiment"] == "sines"
    assert (tmp_path / "run" / "report.html").exists()
