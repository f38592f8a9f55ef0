"""Small pieces that all pages of the explorer use."""

from __future__ import annotations

from typing import Any

import panel as pn

WIDE: dict[str, Any] = {"sizing_mode": "stretch_width", "margin": 0}
"""As wide as the place it is put in; distances are the style sheet's."""


def html(text: str, **options: Any) -> pn.pane.HTML:
    """Text with markup; whatever comes from elsewhere must be escaped before."""
    return pn.pane.HTML(text, **(WIDE | options))
