"""Short trainings that choose the settings which the data do not tell: frequency, nearness, hide, noise and visible.

The spacing of the points and the length scales of the data propose candidates. Successive halving (Jamieson & Talwalkar
2016) trains all of them for a few steps and the best again for longer, each from the same first weights. Candidates are
judged at held-out points and cells, without noise and without the Sobolev term. The winner then meets itself with less
weight on visible cells. All trials together take at most `SHARE` of the steps and of the time allowed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from cstformer.starts.gaussian_process import Kernel
from cstformer.training.settings import Settings

SHARE = 0.2  # of the steps, and of the minutes, that all trials take together
FEWEST_STEPS = 16  # a shorter trial says nothing: then the proposal is taken without any
# By how much a candidate must be better than the proposal. Short trainings favour what learns fast: on clean spirals a
# high frequency with nearness is 18 % better than the proposal after 30 steps, and 20 % worse after 1200. On ETTh1 with
# 10 % removed all of the noise is 8 % better than a quarter of it after 60 steps, and 10 % worse after 1200.
MARGIN = 0.25
TOKENS_PER_CYCLE = 6  # the high frequency tells neighbouring points apart: this many points to a cycle
LESS_NOISE = 0.25  # factor of the noise
MORE_HIDDEN = 0.8  # largest share of points hidden that is tried
# Weight of visible cells that is tried where a process is rough, so that its noise is not known: visible cells then
# teach a network to give back their noise. On intensive-care patients training is worse than its start with weight 1
# and better with a tenth, from the first 40 steps on; on ETTh1 with half of the cells removed weight 1 is better.
LESS_VISIBLE = 0.1

Changes = dict[str, Any]
"""Settings by name; ``noise`` is the factor of the estimated noise."""


def candidates(settings: Settings, kernel: Kernel, spacing: float) -> list[Changes]:
    """Candidates for what is ``auto``; the first is the proposal, which is taken without trials.

    A process of length ℓ varies with a standard deviation of 1 / 2πℓ cycles per unit, which smooth curves need. Rough
    series need to tell neighbours apart, and heads that look near a place. So the smoothness of the kernel proposes one
    of the two, and the other is tried; so are more hidden points. What a smooth process leaves is noise. Of a rough one
    noise and roughness look alike: then a quarter of the noise is proposed and all of it is tried.

    >>> from cstformer.training.settings import UserSettings
    >>> curves, rough = Kernel((0.16,), 1.0, 0.5, 0.1), Kernel((0.16,), 1.0, 0.5, 0.1, smoothness=0.5)
    >>> candidates(UserSettings(), curves, spacing=1 / 48)[0]
    {'frequency': 1.0, 'nearness': 'never'}
    >>> candidates(UserSettings(), rough, spacing=1 / 48)[0]
    {'frequency': 8.0, 'nearness': 'always', 'noise': 0.25}
    """
    low = max(1.0, round(1 / (2 * math.pi * min(kernel.lengthscales)), 1))
    high = max(low, round(1 / (TOKENS_PER_CYCLE * spacing), 1))
    encodings = [{"frequency": low, "nearness": "never"}, {"frequency": high, "nearness": "always"}]
    if kernel.smoothness is not None:
        encodings.reverse()
    automatic = {"frequency"} if settings.frequency == "auto" and settings.encoding == "fourier" else set()
    automatic |= {"nearness"} if settings.nearness == "auto" else set()
    proposal, other = ({name: e[name] for name in e if name in automatic} for e in encodings)
    if settings.noise == "auto":
        noises = [{}, {"noise": LESS_NOISE}] if kernel.smoothness is None else [{"noise": LESS_NOISE}, {"noise": 1.0}]
    else:
        noises = [{}]
    found = [proposal | noises[0], other | noises[0], *(proposal | noise for noise in noises[1:])]
    if settings.hide == "auto":
        found.append(found[0] | {"hide": MORE_HIDDEN})
    return [changes for i, changes in enumerate(found) if changes not in found[:i]]


def weighs_visible(settings: Settings, kernel: Kernel) -> bool:
    """Whether less weight on visible cells is tried."""
    return settings.visible == "auto" and kernel.smoothness is not None and settings.hide != 0


@dataclasses.dataclass
class Trials:
    """What was tried, and what won.

    Attributes
    ----------
    steps : training steps that all trials may take
    judge : from settings, steps and a title to a score, lower is better
    visible : whether less weight on visible cells is tried
    tried : list of dict
        ``settings``, ``steps`` and ``score`` of each trial, in their order.
    """

    steps: int
    judge: Callable[[Changes, int, str], float]
    visible: bool = False
    tried: list[dict[str, Any]] = dataclasses.field(default_factory=list)

    def choose(self, found: list[Changes]) -> Changes:
        """Compare all candidates, the first with the best of the others for twice as long, then visible cells."""
        proposal, *others = found
        several = len(found) + 4 if others else 2  # one for each candidate, then two for each of two
        steps = self.steps // (several + 2 * self.visible)
        if not (others or self.visible) or steps < FEWEST_STEPS:
            return proposal
        winner, score = self._duel(proposal, others, steps) if others else (proposal, self._score(proposal, 2 * steps))
        if not self.visible:
            return winner
        lighter = winner | {"visible": LESS_VISIBLE}
        return lighter if self._score(lighter, 2 * steps) < score else winner

    def _duel(self, proposal: Changes, others: list[Changes], steps: int) -> tuple[Changes, float]:
        """The winner of the candidates, and its score after twice as many steps."""
        scores = [self._score(changes, steps) for changes in (proposal, *others)]
        best = others[min(range(len(others)), key=scores[1:].__getitem__)]
        challenged, challenger = (self._score(changes, 2 * steps) for changes in (proposal, best))
        return (best, challenger) if challenger < (1 - MARGIN) * challenged else (proposal, challenged)

    def _score(self, changes: Changes, steps: int) -> float:
        score = self.judge(changes, steps, f"trial {len(self.tried) + 1}")
        self.tried.append({"settings": changes, "steps": steps, "score": score})
        return score if math.isfinite(score) else math.inf


def minutes(total: float | None, trial: int, all_steps: int) -> float | None:
    """Cap of a trial that takes ``trial`` of ``all_steps`` steps of all trials, where ``total`` is the whole cap."""
    return None if total is None else SHARE * total * trial / max(1, all_steps)
