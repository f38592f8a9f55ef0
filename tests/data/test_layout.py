"""`PatchLayout`."""

import json

import pytest

from cstformer.data.layout import PatchLayout
from cstformer.errors import CSTError


def test_layout_numbers():
    layout = PatchLayout((10, 16), (8, 8), 2)
    assert layout.padded == (16, 16) and layout.grid == (2, 2) and layout.c == 128
    assert layout.centres.tolist() == [[3.5, 3.5], [3.5, 11.5], [11.5, 3.5], [11.5, 11.5]]
    for each in (layout, PatchLayout((16, 8), (8, 4), periodic=True)):
        assert PatchLayout.from_dict(json.loads(json.dumps(each.to_dict()))) == each


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (((10,), (8, 8)), "frame must be two positive integers"),
        (((10, 10), (8, 0)), "patch must be two positive integers"),
        (((10, 10), 8), "patch must be two positive integers .* got 8"),
        (((10, 10), (8, 8), 0), "channels must be a positive integer, got 0"),
        (((10, 10), (5, 5), 1, 1), "periodic must be True or False, got 1"),
        (((10, 16), (8, 8), 1, True), "must be whole patches; choose a patch that divides them"),
    ],
)
def test_layout_refuses(arguments, message):
    with pytest.raises(CSTError, match=message):
        PatchLayout(*arguments)
    with pytest.raises(CSTError, match="a patch layout has"):
        PatchLayout.from_dict({"frame": [1, 1]})
