"""The error of a model that was asked before it was fitted; importing it imports scikit-learn, which is slow."""

from __future__ import annotations

from sklearn.exceptions import NotFittedError

from cstformer.errors import CSTError


class NotFitted(CSTError, NotFittedError):
    """A model was asked before it was fitted."""
