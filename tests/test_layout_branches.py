"""Only the kinds of data ask "frames or curves?": a branch on the layout elsewhere is a method that they lack."""

import ast
from pathlib import Path

import cstformer

PACKAGE = Path(cstformer.__file__).parent
# Rooms whose subject is layouts: tokens from pixels, the two kinds themselves, commands and pages for each of them.
MAY_ASK = {"data", "starts", "cli", "explorer"}
# What the others ask, how many times, and why.
ASKED = {
    "models/model.py": 1,  # rivals that read frames alone refuse curves
    "models/answers.py": 1,  # times of patches are those of frames, and never made relative to a sample
    "models/movie_answers.py": 1,  # a model that was not fitted on a movie is refused
    "baselines/sequences.py": 1,  # models of time series refuse points of several axes that are no frames
    "experiments/calcium/decoding.py": 1,  # a map of attention needs patches to be drawn on
    "experiments/navier_stokes/noise_levels.py": 1,  # the noise of one sample is known for frames alone
}


def questions(tree: ast.AST) -> int:
    """How many times code compares a layout, or the frame of a token, with None, or tests for `Points` or `Frames`.

    Assertions do not count: they tell the type checker what is known already.
    """

    def last_name(node: ast.AST) -> str:
        return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")

    def asks(node: ast.AST) -> bool:
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            none = any(isinstance(side, ast.Constant) and side.value is None for side in sides)
            return none and any(last_name(side) in ("layout", "layout_", "frame") for side in sides)
        if isinstance(node, ast.Call) and last_name(node.func) == "isinstance":
            return bool({last_name(n) for n in ast.walk(node.args[1])} & {"Points", "Frames"})
        return False

    if isinstance(tree, ast.Assert):
        return 0
    return asks(tree) + sum(map(questions, ast.iter_child_nodes(tree)))


def test_nothing_else_asks_which_kind_of_data_it_has():
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE)
        if name.parts[0] not in MAY_ASK:
            found[name.as_posix()] = questions(ast.parse(path.read_text()))
    assert {name: count for name, count in found.items() if count} == ASKED


def test_the_walk_over_the_files_sees_questions():
    for code in ("x.layout is None", "f(layout is not None)", "self.layout_ == None", "isinstance(k, (int, s.Points))"):
        assert questions(ast.parse(code)) == 1
    assert questions(ast.parse("x is None\nlayout is y\nassert layout is not None\nisinstance(x, int)")) == 0
