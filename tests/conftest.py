"""One thread, and run-time checks of the annotated shapes and types of the mathematical core."""

import sys
import types

import torch
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

torch.set_num_threads(1)

# Only the core: elsewhere tests hand over wrong types on purpose, to read the package's own errors.
CORE = (
    "network",
    "starts.gaussian_process",
    "starts.curves",
    "taylor.kernels",
    "taylor.recurrences",
    "taylor.series",
    "training.losses",
    "training.objective",
    "training.sampling",
)
# beartype as mypy understands annotations: an int is welcome where a float is. The import hook takes the
# checker by its dotted name, hence the small module.
checker = types.ModuleType("cstformer_type_checker")
checker.check = beartype(conf=BeartypeConf(is_pep484_tower=True))
sys.modules[checker.__name__] = checker
install_import_hook([f"cstformer.{name}" for name in CORE], f"{checker.__name__}.check")
