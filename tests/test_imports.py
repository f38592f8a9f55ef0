"""Imports point one way, from room to room; DESIGN and CONTRIBUTING.md draw the house."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import cstformer

PACKAGE = Path(cstformer.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
# What each room may import, besides itself: the rooms left of it. Everybody may import `errors`.
CORE = ("system", "data", "taylor", "starts", "network", "training", "models", "baselines")
SEES = {room: set(CORE[:i]) for i, room in enumerate(CORE)}
SEES["data"] = SEES["taylor"] = {"system"}
SEES |= {
    "errors": set(),
    "datasets": {"system", "data"},
    "report": {"system", "data"},
    "models": {*SEES["models"], "report"},
    "experiments": {*CORE, "datasets", "report", "benchmarks"},
    "explorer": {*CORE[:-1], "report"},
    "benchmarks": {*CORE, "datasets", "explorer"},
    "cli": {*CORE, "datasets", "report", "experiments", "explorer", "benchmarks"},
}
# Imports inside functions, each with its reason; `cli` may defer any of its imports, so that `cst --help` is fast.
DEFERRED: dict[str, set[str]] = {
    # torch: reading a file of solutions does not need it, computing them does
    "cstformer.datasets.navier_stokes": {"cstformer.datasets.vorticity", "cstformer.system.threads"},
    # matplotlib: only a picture needs it; scikit-learn: only the error of a model that was not fitted
    "cstformer.models.model": {"cstformer.models.plotting", "cstformer.models.not_fitted"},
    "cstformer.data.samples": {"cstformer.report.sample_plots"},
}
# The one import to the right: `samples.plot()` is a method, as users expect it; `sample_plots` imports no `Samples`.
DRAWS = {"cstformer.data.samples": {"cstformer.report.sample_plots"}}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def room(module: str) -> str:
    """The folder (or, for `errors`, the file) of a module; of the package itself the empty string."""
    return [*module.split("."), ""][1]


def imported(path: Path, everywhere: bool) -> set[str]:
    """Modules of the package that a file imports: at the top level, or also inside functions."""
    tree = ast.parse(path.read_text())
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not everywhere:
                continue
            if isinstance(child, ast.Import):
                found.update(alias.name for alias in child.names)
            if isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path} uses a relative import"
                for alias in child.names:
                    inner = f"{child.module}.{alias.name}"
                    found.add(inner if inner in MODULES else str(child.module))
            visit(child)

    visit(tree)
    return {name for name in found if name in MODULES}


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"cstformer"}))  # the front door names everything, lazily
def test_a_room_imports_only_what_is_left_of_it(module):
    mine = room(module)
    wrong = {m for m in imported(MODULES[module], everywhere=True) if room(m) not in {*SEES[mine], mine, "errors", ""}}
    wrong -= DRAWS.get(module, set())
    assert not wrong, f"{module} imports {sorted(wrong)}"


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"cstformer"}))
def test_only_the_listed_imports_are_deferred(module):
    if room(module) == "cli":
        return
    path = MODULES[module]
    deferred = imported(path, everywhere=True) - imported(path, everywhere=False)
    assert deferred == DEFERRED.get(module, set())


def test_the_walk_over_the_files_sees_imports():
    assert "cstformer.network.transformer" in imported(MODULES["cstformer.models.cst"], everywhere=False)
    assert room("cstformer.baselines.base") == "baselines" and room("cstformer.errors") == "errors"
    assert {room(module) for module in MODULES} == {*SEES, ""}


def test_no_import_cycles():
    graph = {module: imported(path, everywhere=True) for module, path in MODULES.items()}
    done: set[str] = set()

    def visit(module: str, trail: tuple[str, ...]) -> None:
        assert module not in trail, " → ".join((*trail[trail.index(module) :], module))
        if module not in done:
            for other in sorted(graph[module]):
                visit(other, (*trail, module))
            done.add(module)

    for module in graph:
        visit(module, ())


def modules_after(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after running ``code``."""
    script = f"import sys\n{code}\nprint('LOADED', *sorted({{m.split('.')[0] for m in sys.modules}}))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split()[1:])


HEAVY = {"torch", "lightning", "pandas", "scipy", "sklearn", "matplotlib", "xarray"}


def test_import_of_the_package_is_light():
    assert not modules_after("import cstformer") & HEAVY


def test_samples_and_files_do_not_need_torch():
    loaded = modules_after("import cstformer\ncstformer.Samples([0.0, 1.0], [[1.0, 2.0]])")
    assert "numpy" in loaded
    assert not loaded & {"torch", "lightning", "matplotlib"}


MODEL = Path(__file__).parent / "released" / "0.1.0" / "cubic" / "model"


@pytest.mark.parametrize("code", ["CST()", "CST().set_params(seed=1).get_params()", f"CST.load({str(MODEL)!r})"])
def test_a_model_waits_for_torch_alone(code):
    loaded = modules_after(f"import cstformer\ncstformer.{code}")
    assert "torch" in loaded
    assert not loaded & (HEAVY - {"torch"} | {"sympy"})  # sympy comes with torch's compiler, which takes two seconds


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["--version"]])
def test_help_does_not_wait_for_torch(arguments):
    call = f"try: main({arguments!r})\nexcept SystemExit as end: assert end.code == 0"
    code = f"from cstformer.cli import main\n{call}"
    assert not modules_after(code) & (HEAVY | {"numpy"})


def test_every_public_name_exists():
    for name in cstformer.__all__:
        assert getattr(cstformer, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        cstformer.nonsense  # noqa: B018
