"""One thread, and run-time checks of every annotated shape and type while testing."""

import torch
from jaxtyping import install_import_hook

torch.set_num_threads(1)
install_import_hook("cstformer", "beartype.beartype")
