"""Small pieces that all pages of the explorer use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import panel as pn

WIDE: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
"""As wide as the place it is put in; distances are the style sheet's."""


def html(text: str, **options: Any) -> pn.pane.HTML:
    """Text with markup; whatever comes from elsewhere must be escaped before."""
    return pn.pane.HTML(text, **(WIDE | options))


def after(work: Callable[[], Any], milliseconds: int) -> Callable[[], None]:
    """Call `work` so long after the last of many calls to the result; at once where no browser is connected."""
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
