"""Extension of Griffe: signatures on the API page show the default of a setting, not the call that declares it."""

from __future__ import annotations

import dataclasses
from typing import Any

import griffe

from cstformer import CST

DEFAULTS = {field.name: field.default for field in dataclasses.fields(CST)}
OWNERS = {f"{cls.__module__}.{cls.__qualname__}" for cls in CST.__mro__}


class SettingDefaults(griffe.Extension):
    """Writes the defaults of CST's settings, which Griffe reads from the source without running it."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Replace ``setting(4, "transformer blocks", low=1)`` by ``4``."""
        if attr.name in DEFAULTS and attr.parent is not None and attr.parent.path in OWNERS:
            attr.value = repr(DEFAULTS[attr.name])
