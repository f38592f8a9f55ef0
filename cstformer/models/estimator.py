"""The conventions of scikit-learn, without its import: half of the time until a first `CST` was spent there.

scikit-learn takes whatever has its methods. Those that need none of its code are written here; of the others,
`Estimator` borrows the code of scikit-learn's ``BaseEstimator`` when somebody asks for them.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Self

from cstformer.training.settings import check_names, setting_fields


class Estimator:
    """Settings as scikit-learn asks for them, and what it shows of a model."""

    @classmethod
    def _owner(cls) -> str:
        """How messages about settings name this model."""
        return f" of {cls.__name__}"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as they were given.

        Parameters
        ----------
        deep : ignored
            Present for scikit-learn's sake: no setting is an estimator.
        """
        return {name: getattr(self, name) for name in sorted(setting_fields(type(self)))}

    def set_params(self, **settings: Any) -> Self:
        """Change settings.

        Parameters
        ----------
        settings : by name, such as ``seed=1``; an unknown one is refused, with the nearest valid one in the message
        """
        check_names(settings, type(self), self._owner())
        for name, value in settings.items():
            setattr(self, name, value)
        return self

    def __sklearn_tags__(self) -> Any:
        from sklearn.base import BaseEstimator

        return BaseEstimator.__sklearn_tags__(self)

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if hasattr(self, name)]  # without what only a fit brings

    if not TYPE_CHECKING:  # a type checker would believe that every attribute exists

        def __getattr__(self, name: str) -> Any:
            """Borrow what notebooks show, and the routing of metadata, with the private methods that both call."""
            if _may_be_borrowed(name):
                twin = _twin(type(self))
                if hasattr(twin, name):
                    found = inspect.getattr_static(twin, name)
                    return found.__get__(self, twin) if hasattr(found, "__get__") else found
            return super().__getattribute__(name)  # raises again what a property of that name has raised


def _may_be_borrowed(name: str) -> bool:
    """Whether the name is one that ``BaseEstimator`` may have; no other waits for the import."""
    private = name.startswith("_") and not name.startswith("__")
    return private or name.endswith(("_request", "_routing"))


@functools.cache
def _twin(cls: type) -> type:
    """Make the class that also inherits from ``BaseEstimator``, which reads the signatures of the methods."""
    from sklearn.base import BaseEstimator

    return type(cls.__name__, (cls, BaseEstimator), {})
