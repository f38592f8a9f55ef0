"""Helpers that all views of the explorer share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

WIDE: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
"""Options of a widget that fills the width of its container; the style sheet sets margins."""


def html(text: str, **options: Any) -> pn.pane.HTML:
    """A pane of HTML. Escape all text that comes from elsewhere before passing it."""
    return pn.pane.HTML(text, **(WIDE | options))


def after(work: Callable[[], Any], milliseconds: int) -> Callable[[], None]:
    """Debounce: return a function that runs `work` this long after its last call, or at once without a browser."""
    waiting: list[Any] = []

    def run() -> None:
        waiting.clear()
        work()

    def call() -> None:
        document = pn.state.curdoc
        if document is None or document.session_context is None:
            work()
            return
        if waiting:
            document.remove_timeout_callback(waiting.pop())
        waiting.append(document.add_timeout_callback(run, milliseconds))

    return call
