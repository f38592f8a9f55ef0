"""One sample, encoded once and asked again and again: what makes a slider smooth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from cstformer.data.checks import check_queries
from cstformer.data.samples import Samples
from cstformer.errors import CSTError
from cstformer.models.cst import CST, TOKENS_PER_PASS
from cstformer.network.transformer import parameter_count
from cstformer.system.threads import thread_limit
from cstformer.taylor import series
from cstformer.taylor.derivatives import check_multi_index, plan


class Reader:
    """A model and the context of one sample; answers equal `CST.derivatives` and `CST.attention`.

    In pattern ``context`` the context is encoded here and now. In ``joint`` every answer depends on all questions of
    its call, so that nothing can be kept.
    """

    def __init__(self, model: CST, context: Samples) -> None:
        if len(context) != 1:
            raise CSTError(f"a reader takes one sample, got {len(context)}; pick one, e.g. samples[0]")
        a = model.network_.architecture
        check_queries(context, np.zeros((1, a.d)), a.d, a.c)
        self.model, self.context = model, context.merged().sorted()
        self._points = model.scaling_.batch(self.context, model._dtype(), model.device_).points
        with torch.no_grad(), model._arithmetic(False):
            self._start = model._start(self._points)
            self._points = model.network_.prepare(self._points, self._start)
            self._encoded = None if a.pattern == "joint" else model.network_.encode(self._points)

    def partials(
        self, at: Float[np.ndarray, "m d"], indices: Sequence[Sequence[int]]
    ) -> list[Float[np.ndarray, "m c"]]:
        """Partial derivatives at these coordinates, in the user's units; order 0 is the value."""
        network, scaling = self.model.network_, self.model.scaling_
        wanted = [check_multi_index(index, network.architecture.d) for index in indices]
        terms = plan(network.architecture.d, wanted)
        x = self.model._tensor(scaling.coords(np.asarray(at, dtype=np.float64)))[None]
        chunk = max(1, TOKENS_PER_PASS // (1 + terms.order * len(terms.directions)))
        chunk = len(at) if self._encoded is None else chunk
        parts = []
        threads = thread_limit(self.model.threads, parameter_count(network))
        with torch.no_grad(), self.model._arithmetic(False), threads:
            for some in x.split(chunk, 1):
                query = series.straight_line(some, terms.directions, terms.order)
                if self._encoded is None:
                    y = network(self._points, query, self._start(query))[1]
                else:
                    y = network.read(self._encoded, query, self._start(query))
                parts.append([terms.partial(y, q)[0].cpu().double().numpy() for q in wanted])
        return [scaling.derivative(np.concatenate(p), q) for p, q in zip(zip(*parts, strict=True), wanted, strict=True)]

    def attention(self, at: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "layers heads m n"]:
        """How each query shares its attention among the points of `context`; ``joint`` has a share for queries too."""
        network = self.model.network_
        query = series.constant(self.model._tensor(self.model.scaling_.coords(np.asarray(at, dtype=np.float64)))[None])
        maps: list[torch.Tensor] = []
        with torch.no_grad(), self.model._arithmetic(False):
            if self._encoded is None:
                network(self._points, query, self._start(query), maps)
            else:
                network.read(self._encoded, query, self._start(query), maps)
        n = self.context.n
        return torch.stack(maps, 1)[0, :, :, -len(at) :, :n].cpu().double().numpy()
