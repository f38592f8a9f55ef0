"""CST on several processes: starting them, and being one of them."""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from cstformer.data.lazy import LazyFrames
from cstformer.data.samples import Samples
from cstformer.errors import CSTError, CSTWarning
from cstformer.system import processes
from cstformer.system.output import use_lossy_output
from cstformer.system.workers import watch_parent

if TYPE_CHECKING:
    from cstformer.models.cst import CST

_WORK = """
import sys
from cstformer.models import cst, launching
launching.work(cst.CST, sys.argv[1])
"""


def must_launch(model: CST) -> bool:
    """Whether this process must start those of a training; one that was started takes its own GPU, if there is any."""
    count = model.devices * model.nodes
    if not isinstance(model.batch, str) and model.batch < count:
        raise CSTError(f"batch={model.batch} cannot be shared by {count} processes; raise batch, or use fewer")
    found = processes.started_processes()
    if found not in (None, count):
        raise CSTError(
            f"{found} processes were started, but devices={model.devices} × nodes={model.nodes}; make them agree"
        )
    if model.nodes > 1 and not processes.is_started():
        raise CSTError(f"nodes={model.nodes}: start the command by torchrun or srun on each of them (docs: Scale)")
    if count > 1:
        processes.take_device()
    return count > 1 and not processes.is_started()


def fit_on_processes(
    model: CST, samples: Samples | LazyFrames, state: str | os.PathLike[str] | None, progress: bool
) -> None:
    """Start the processes, which call `fit` as well, and take over what the first of them has learned."""
    model.__dict__.pop("shape_", None)  # a fit that fails leaves a model that is not fitted
    state = None if state is None else os.path.abspath(state)
    with tempfile.TemporaryDirectory(prefix="cst-fit-") as folder:
        job = {"settings": model.settings(), "state": state, "progress": progress}
        if isinstance(samples, LazyFrames):
            job["frames"] = samples.describe()
        else:
            samples.save(Path(folder, "samples.npz"))
        Path(folder, "job.json").write_text(json.dumps(job))

        def saved() -> str:
            if state is None:
                return "nothing was saved, give state="
            kept = os.path.exists(state)
            return f"{state} keeps what was done, fit again to go on" if kept else "nothing was done yet, fit again"

        processes.run_processes(model.devices, _WORK, Path(folder), progress, saved)
        fitted = type(model).load(Path(folder, "model"))
    model.__dict__.update({k: v for k, v in vars(fitted).items() if k.endswith("_")})
    if model.report_.ended in ("cap", "not finite"):
        warnings.warn(model.report_.sentence(model.run_), CSTWarning, stacklevel=4)


def work(kind: type[CST], folder: str) -> None:
    """Be one of the processes that `fit_on_processes` started: fit, and let the first one save the model."""
    watch_parent(os.getppid())
    use_lossy_output()
    warnings.simplefilter("ignore")
    job = json.loads(Path(folder, "job.json").read_text())
    first = processes.is_first()
    try:
        samples = LazyFrames(**job["frames"]) if "frames" in job else Samples.load(Path(folder, "samples.npz"))
        model = kind(**job["settings"]).fit(samples, state=job["state"], progress=job["progress"] and first)
        if first:
            model.save(Path(folder, "model"))
    except CSTError as error:
        Path(folder, f"{os.environ['RANK']}.error").write_text(str(error))
        raise SystemExit(2) from error
