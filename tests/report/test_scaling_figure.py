"""The scaling figure: every series drawn where its numbers are, slopes written, nothing drawn from nothing."""

import numpy as np
import pytest

from cstformer.errors import CSTError
from cstformer.report.scaling import scaling_figure

ROWS = [
    {"axis": axis, "system": system, "size": n, "seconds": 1e-3 * n**power, "peak MB": 0.1 * n}
    for axis in ("dummies", "order")
    for system, power in {"joint, exact": 2, "context": 1}.items()
    for n in ((10, 100, 1000) if axis == "dummies" else (1, 2, 3))
]
SLOPES = [{"axis": "dummies", "system": "joint, exact", "slope of seconds": 2.0, "slope of peak MB": 1.0}]


def test_lines_are_the_measurements():
    fig = scaling_figure(ROWS + SLOPES, title="growth")
    panels = fig.axes
    assert len(panels) == 4  # time and memory, against two things
    lines = {line.get_label(): line for line in panels[0].get_lines()}
    np.testing.assert_allclose(lines["joint, exact"].get_ydata(), [0.1, 10, 1000])
    np.testing.assert_allclose(lines["context"].get_xdata(), [10, 100, 1000])
    assert [t.get_text() for t in panels[0].texts] == ["slope 2.00"]
    assert panels[0].get_xscale() == "log" and panels[1].get_xscale() == "linear"
    assert panels[2].get_xlabel() == "dummy points" and panels[0].get_ylabel() == "seconds a step"


def test_nothing_to_draw():
    with pytest.raises(CSTError, match="run cst bench"):
        scaling_figure(SLOPES)
