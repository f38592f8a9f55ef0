"""Covariates: numbers or labels of a sample that are known at every coordinate and never predicted.

`Samples` keeps them as an array (N, e) of floats, NaN where one is missing. A label, such as a site, is kept as its
number in the list ``categories[name]``. `CovariateEncoder` turns them into the features that a network reads.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from cstformer.data.arrays import as_floats
from cstformer.data.names import checked_names
from cstformer.errors import CSTError, CSTWarning, unknown

if TYPE_CHECKING:
    from cstformer.data.samples import Samples

Categories = dict[str, tuple[str, ...]]


def checked_covariates(
    given: Any, names: Sequence[str] | None, categories: Mapping[str, Sequence[str]] | None, count: int
) -> tuple[np.ndarray, tuple[str, ...], Categories]:
    """Array (count, e), names and categories of covariates that were given as an array or as columns by name.

    >>> checked_covariates({"age": [61, 48], "site": ["B", "A"]}, None, None, 2)
    (array([[61.,  1.],
           [48.,  0.]]), ('age', 'site'), {'site': ('A', 'B')})
    """
    if given is None:
        if names or categories:
            raise CSTError(f"covariate_names {list(names or categories or ())} came without covariates; pass both")
        return np.zeros((count, 0)), (), {}
    if isinstance(given, Mapping):
        if names is not None or categories is not None:
            raise CSTError("covariates by name have their names already; leave out covariate_names and categories")
        given, names, categories = from_columns(given, count)
    x = as_floats("covariates", given)
    x = x[:, None] if x.ndim == 1 else x
    if x.ndim != 2 or len(x) != count:
        raise CSTError(f"covariates must have shape (N, e) with N = {count} samples, got {x.shape}")
    if np.isinf(x).any():
        row, k = np.argwhere(np.isinf(x))[0]
        raise CSTError(f"covariates are infinite at sample {row}, covariate {k}; use NaN for missing ones")
    labels = checked_names("covariate_names", names, x.shape[1], "covariate", "covariate")
    found = {str(name): tuple(map(str, texts)) for name, texts in (categories or {}).items()}
    for name, texts in found.items():
        if name not in labels:
            raise unknown("covariate in categories", name, labels)
        code = x[:, labels.index(name)]
        code = code[~np.isnan(code)]
        if len(set(texts)) < len(texts) or not np.isin(code, np.arange(len(texts))).all():
            raise CSTError(
                f"covariate {name!r} must hold the numbers 0 to {len(texts) - 1} of its different categories"
            )
    return x + 0.0, labels, found


def from_columns(columns: Mapping[str, Any], count: int) -> tuple[np.ndarray, list[str], Categories]:
    """Array (count, e), names and categories from columns by name; text becomes categories in alphabetical order."""
    x, categories = np.full((count, len(columns)), np.nan), {}
    for k, (name, column) in enumerate(columns.items()):
        entries = np.asarray(column)
        if entries.shape != (count,):
            raise CSTError(
                f"covariate {name!r} must have one entry for each of the {count} samples, got {entries.shape}"
            )
        if entries.dtype.kind in "fiub":
            x[:, k] = entries
            continue
        texts = ["" if entry is None or entry != entry else str(entry) for entry in entries.tolist()]
        categories[name] = tuple(sorted({text for text in texts if text}))
        codes = {text: code for code, text in enumerate(categories[name])}
        x[:, k] = [codes.get(text, np.nan) for text in texts]
    return x, [str(name) for name in columns], categories


def labels_of(samples: Samples, name: str) -> np.ndarray:
    """The covariate of this name of each sample: numbers, or labels with None where one is missing."""
    x = samples.covariates[:, samples.covariate_names.index(name)]
    if name not in samples.categories:
        return x
    texts = samples.categories[name]
    return np.array([None if np.isnan(code) else texts[int(code)] for code in x], dtype=object)


def chosen_covariates(samples: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """Keep only these covariates among the arguments of `Samples`; all of them for None."""
    if names is None:
        return samples
    names, known = [names] if isinstance(names, str) else list(names), list(samples.get("covariate_names") or ())
    for name in names:
        if name not in known:
            raise unknown("covariate of the file", name, known)
    x = np.asarray(samples["covariates"])[:, [known.index(name) for name in names]]
    categories = {k: v for k, v in (samples.get("categories") or {}).items() if k in names}
    return samples | {"covariates": x, "covariate_names": names, "categories": categories}


def joined_covariates(parts: Sequence[Samples]) -> dict[str, Any]:
    """Covariates of all samples of all parts, as arguments of `Samples`; categories of one name are united."""
    names = parts[0].covariate_names
    for i, part in enumerate(parts):
        if part.covariate_names != names:
            raise CSTError(f"part {i} has covariates {part.covariate_names}, but part 0 has {names}; make them equal")
    x, categories = np.concatenate([part.covariates for part in parts]), {}
    for k, name in enumerate(names):
        if len({name in part.categories for part in parts}) > 1:
            raise CSTError(f"covariate {name!r} has labels in some parts and numbers in others; make them equal")
        if name in parts[0].categories:
            texts = tuple(dict.fromkeys(text for part in parts for text in part.categories[name]))
            codes = {text: code for code, text in enumerate(texts)}
            x[:, k] = [codes.get(text, np.nan) for part in parts for text in labels_of(part, name)]
            categories[name] = texts
    return {"covariates": x, "covariate_names": names, "categories": categories}


@dataclass(frozen=True)
class CovariateEncoder:
    """Features of covariates for a network, fitted to training samples.

    A number is standardised. A label of k categories becomes k zeros and ones. What is missing becomes zeros; behind
    these features, one more for each covariate is 1 where it is missing.

    Attributes
    ----------
    names : covariates in the order of the features
    categories : labels known from the training, by name
    mean, sd : (e,), of the training samples; 0 and 1 for labels

    Examples
    --------
    >>> from cstformer.data.samples import Samples
    >>> s = Samples([0.0], [[1.0], [2.0]], covariates={"age": [40.0, 60.0], "site": ["A", None]})
    >>> CovariateEncoder.of(s).encode(s).tolist()
    [[-1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0]]
    """

    names: tuple[str, ...] = ()
    categories: Categories | None = None
    mean: tuple[float, ...] = ()
    sd: tuple[float, ...] = ()

    @classmethod
    def of(cls, samples: Samples) -> CovariateEncoder:
        """Measure the covariates of training samples."""
        mean, sd = [], []
        for k, name in enumerate(samples.covariate_names):
            x = samples.covariates[:, k]
            x = x[~np.isnan(x)]
            number = name not in samples.categories and len(x) > 0
            mean.append(float(x.mean()) if number else 0.0)
            spread = float(x.std()) if number else 1.0
            sd.append(spread if spread > 1e-12 * abs(mean[-1]) else 1.0)  # rounding of the mean is no spread
        return cls(samples.covariate_names, dict(samples.categories), tuple(mean), tuple(sd))

    @property
    def size(self) -> int:
        """Number of features."""
        labels = self.categories or {}
        return sum(len(labels.get(name, "1")) for name in self.names) + len(self.names)

    def encode(self, samples: Samples) -> Float[np.ndarray, "N features"]:
        """Features of each sample; an unknown label counts as missing, with a warning."""
        self._check(samples)
        parts, missing = [np.zeros((len(samples), 0))], np.zeros((len(samples), len(self.names)))
        for k, name in enumerate(self.names):
            column = self._column(samples, name)
            missing[:, k] = np.isnan(column)
            if name in (self.categories or {}):
                parts.append((column[:, None] == np.arange(len(self.categories[name]))).astype(float))  # type: ignore[index]
            else:
                parts.append(np.nan_to_num((column - self.mean[k]) / self.sd[k])[:, None])
        return np.concatenate([*parts, missing], axis=1)

    def _check(self, samples: Samples) -> None:
        """Refuse samples with other covariates than those of the training."""
        if set(samples.covariate_names) == set(self.names):
            return
        mine, theirs = (", ".join(names) or "none" for names in (self.names, samples.covariate_names))
        drop = "" if self.names else "; leave them out by samples.replace(covariates=None)"
        raise CSTError(f"the model was fitted with covariates: {mine}; these samples have: {theirs}{drop}")

    def _column(self, samples: Samples, name: str) -> np.ndarray:
        """A covariate as numbers, or as numbers of the categories known here; NaN where it is missing."""
        column, known = labels_of(samples, name), (self.categories or {}).get(name)
        if known is None:
            if name in samples.categories:
                raise CSTError(f"covariate {name!r} was numbers in the training, now it has labels; convert them")
            return column
        if column.dtype.kind == "f":  # a text file does not tell the label "12" from the number
            column = np.array([None if np.isnan(x) else f"{x:.12g}" for x in column], dtype=object)
        strange = sorted({text for text in column if text is not None and text not in known})
        if strange:
            warnings.warn(
                f"covariate {name!r} has the unknown label{'s' if len(strange) > 1 else ''} "
                f"{', '.join(map(repr, strange[:5]))}; treated as missing (known: {', '.join(known[:20])})",
                CSTWarning,
                stacklevel=2,
            )
        codes = {text: float(code) for code, text in enumerate(known)}
        return np.array([codes.get(text, np.nan) for text in column])

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {"names": self.names, "categories": self.categories, "mean": self.mean, "sd": self.sd}

    @classmethod
    def from_description(cls, about: dict[str, Any]) -> CovariateEncoder:
        """From JSON."""
        categories = {name: tuple(texts) for name, texts in about["categories"].items()}
        mean, sd = (tuple(float(x) for x in about[k]) for k in ("mean", "sd"))
        if not len(about["names"]) == len(mean) == len(sd) or not all(x > 0 for x in sd):
            raise ValueError("covariates have names, means and standard deviations that do not fit")
        return cls(tuple(about["names"]), categories, mean, sd)
