r"""Low rank approximation of a movie: its leading singular vectors, and how many of them are more than noise.

Singular value decomposition of the matrix Y (frames × pixels), :math:`Y = \sum_k s_k\, w_k v_k^\top`.

*Leading singular vectors* (`truncated_svd`). Subspace iteration with a random start (Halko, Martinsson & Tropp 2011,
algorithm 4.4): the basis Q (pixels × l) is replaced a few times by an orthonormal basis of :math:`Y^\top Y Q`. The
singular value decomposition of the narrow matrix YQ then gives that of Y. Y is read block by block, once for each
product.

*Rank* (`held_out_errors`). Cross-validation of frames and pixels at once, after the bi-cross-validation of Owen & Perry
(2009). Half of the frames, the matrix Y, give singular vectors :math:`V_k` (pixels × k). Some pixels *a* are then
regressed on the coefficients that other pixels *g* alone would give,

.. math:: \hat y_a = y_g V_{g,k}\, \beta_k, \qquad
          \beta_k = (Z_k^\top Z_k)^{-1} Z_k^\top\, Y_a, \quad Z_k = Y_g V_{g,k},

and the error is measured in the other half of the frames. Their noise at the pixels *a* is independent of all that
predicts it, so vectors that fit noise increase the error. Neighbouring pixels share noise after blurring or after a
regression on patches: *a* therefore consists of contiguous tiles, without the pixels near their edges.

Beside it, the original method, which predicts from the singular vectors of the pixels *g* themselves, found rank 25
where 9 was true: a vector that is weak in *g* comes late in their order.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from cstformer.data.frame_matrix import FrameMatrix
from cstformer.errors import CSTError

OVERSAMPLING = 10  # columns of Q beyond the rank; Halko et al. recommend 5 to 10
PASSES = 6  # products with Yᵀ Y; an error of the start falls by (s_{l+1} / s_k)² in each
EXACT = 300  # matrices with a side of at most this size are decomposed exactly
# Tiles along the longer side of a frame, and tile size over the distance between the pixels a and g. Noise of rank-5
# movies of 24 × 24 pixels that was blurred by up to 1.5 pixels leaves the rank at 5; with GAP = 4 it becomes 30. On two
# simulated cortices of 46 × 52 pixels the ranks are 10 and 11, and 8 to 11 with two or three tiles; the error against
# the noise-free signal is flat from 8 to 25.
TILES, GAP = 4, 3
SEGMENTS = 8  # runs of frames that are alternately held out


def truncated_svd(
    matrix: FrameMatrix, rank: int, seed: int
) -> tuple[Float[np.ndarray, "rows rank"], Float[np.ndarray, " rank"], Float[np.ndarray, "columns rank"]]:
    """Leading left singular vectors w, singular values s and right singular vectors v.

    Returns fewer than ``rank`` if a side of the matrix is shorter.
    """
    smaller, width = min(matrix.shape), rank + OVERSAMPLING
    if smaller <= max(EXACT, width):
        width = smaller
    if width == matrix.shape[1]:
        basis = np.eye(width)
    else:
        basis = np.random.default_rng(seed).normal(size=(matrix.shape[1], width))
        for _ in range(1 if width == matrix.shape[0] else PASSES):
            image = np.zeros_like(basis)
            for _, x in matrix.blocks():
                image += x.T @ (x @ basis.astype(x.dtype))
            basis = np.linalg.qr(image)[0]
    narrow = np.empty((matrix.shape[0], width))  # Y Q
    for rows, x in matrix.blocks():
        narrow[rows] = x @ basis.astype(x.dtype)
    left, s, turn = np.linalg.svd(narrow, full_matrices=False)
    return left[:, :rank], s[:rank], basis @ turn[:rank].T


def held_out_errors(
    matrix: FrameMatrix, frame: tuple[int, int], max_rank: int, seed: int
) -> Float[np.ndarray, " ranks"]:
    """Mean squared error of held-out values predicted with k = 0, 1, … vectors, as a share of that with k = 0.

    Parameters
    ----------
    matrix : FrameMatrix of frames with H × W = ``frame`` pixels
    max_rank : largest k; less if there are too few frames or pixels
    """
    half = np.arange(matrix.shape[0]) * SEGMENTS // matrix.shape[0] % 2
    folds = [(given, asked) for given, asked in tile_folds(matrix, frame) if given.any() and asked.any()]
    largest = min(max_rank, int(np.bincount(half, minlength=2).min()) // 2, matrix.shape[1] // 2)
    if largest < 1 or not folds:
        raise CSTError(f"rank='auto' needs more frames or pixels than {matrix.shape}; give the rank as a number")
    total = np.sum([_half_errors(matrix, half == part, folds, largest, seed) for part in (0, 1)], axis=0)
    return np.maximum(total / total[0], 0) if total[0] > 0 else np.ones_like(total)  # rounding may go below 0


def residual_squares(
    matrix: FrameMatrix, vectors: Float[np.ndarray, "columns rank"]
) -> tuple[Float[np.ndarray, " columns"], Float[np.ndarray, " columns"]]:
    """Sum over the rows of (y − V Vᵀ y)² of each column, and the number of observed values it is the sum of.

    >>> matrix = FrameMatrix.of(np.array([[[3.0, 4.0]], [[-3.0, 2.0]]]))  # without the mean (±3, ±1)
    >>> residual_squares(matrix, np.array([[1.0], [0.0]]))[0].tolist()
    [0.0, 2.0]
    """
    squares, counts = np.zeros(matrix.shape[1]), np.zeros(matrix.shape[1])
    for _, raw in matrix.raw_blocks():
        seen = np.isfinite(raw)
        y = np.where(seen, raw - matrix.mean, 0.0)
        squares += np.square(np.where(seen, y - (y @ vectors) @ vectors.T, 0.0)).sum(0)
        counts += seen.sum(0)
    return squares, counts


def residual_inflation(matrix: FrameMatrix, vectors: Float[np.ndarray, "columns rank"], seed: int) -> float:
    """Squares that vectors leave over in frames they were not fitted to, as a multiple of those in their own frames.

    A quarter of the frames, in runs, is held out, and vectors of the same rank are fitted to the others. For K vectors,
    T frames and white noise, the multiple is about (1 + K / T) / (1 − K / T).
    """
    held = np.arange(matrix.shape[0]) * SEGMENTS // matrix.shape[0] % 4 == 2
    every = np.ones(matrix.shape[1], dtype=bool)
    if not held.any() or held.all():
        return 1.0
    others = truncated_svd(matrix.part(~held, every), vectors.shape[1], seed)[2]
    own, new = (float(residual_squares(matrix.part(held, every), v)[0].sum()) for v in (vectors, others))
    return max(1.0, new / own) if own > 0 else 1.0


def best_rank(errors: Float[np.ndarray, " ranks"]) -> int:
    """The rank with the least held-out error, at least 1; of equal ones, up to a millionth of the variance, the first.

    >>> best_rank(np.array([1.0, 0.5, 0.2, 0.2, 0.3]))
    2
    """
    return max(1, int(np.flatnonzero(errors <= errors.min() + 1e-6)[0]))


def tile_folds(
    matrix: FrameMatrix, frame: tuple[int, int]
) -> list[tuple[Bool[np.ndarray, " columns"], Bool[np.ndarray, " columns"]]]:
    """Columns that predict and columns that are held out, for both colours of a chess board of tiles.

    Held-out pixels are farther than 1 / `GAP` of a tile from those that predict them.

    >>> matrix = FrameMatrix.of(np.zeros((1, 12, 12)))
    >>> given, asked = (x.reshape(12, 12) for x in tile_folds(matrix, (12, 12))[0])
    >>> given[1].astype(int).tolist(), asked[1].astype(int).tolist()
    ([1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1, 1])
    """
    from scipy.ndimage import binary_dilation  # a quarter of a second, for what only this function needs

    height, width = frame
    tile = -(-max(height, width) // TILES)
    gap = tile // GAP
    colour = np.add.outer(np.arange(height) // tile, np.arange(width) // tile) % 2
    pixel = matrix.columns // (np.prod(matrix.source.shape[1:]) // (height * width))
    folds = []
    for given in (0, 1):
        near = binary_dilation(colour == given, np.ones((2 * gap + 1, 2 * gap + 1)))
        folds.append(((colour == given).reshape(-1)[pixel], ~near.reshape(-1)[pixel]))
    return folds


def _half_errors(
    matrix: FrameMatrix,
    held: Bool[np.ndarray, " rows"],
    folds: list[tuple[Bool[np.ndarray, " columns"], Bool[np.ndarray, " columns"]]],
    largest: int,
    seed: int,
) -> Float[np.ndarray, " ranks"]:
    """Squared errors at the rows ``held`` for k = 0 … ``largest``, summed over the folds.

    Summed over the held rows, |y_a − z_k β_k|² = Σ |y_a|² − 2 tr(β_kᵀ Σ z_kᵀ y_a) + tr(β_kᵀ (Σ z_kᵀ z_k) β_k): apart
    from the products of `_products` it needs matrices of size k × k alone.
    """
    every = np.ones(matrix.shape[1], dtype=bool)
    halves = matrix.part(~held, every), matrix.part(held, every)
    vectors = truncated_svd(halves[0], largest, seed)[2]
    errors = np.zeros(vectors.shape[1] + 1)
    for given, asked in folds:
        products = [_products(half, vectors, given, asked) for half in halves]
        (gram, cross, _), (held_gram, held_cross, square) = products
        gram = gram + 1e-9 * np.trace(gram) / len(gram) * np.eye(len(gram))  # vectors may be dependent in g
        change, both = held_cross @ cross.T, cross @ cross.T
        errors += square
        for k in range(1, len(errors)):
            inverse = np.linalg.inv(gram[:k, :k])
            spread = inverse @ held_gram[:k, :k] @ inverse
            errors[k] += (spread * both[:k, :k]).sum() - 2 * (inverse * change[:k, :k]).sum()
    return errors


def _products(
    matrix: FrameMatrix,
    vectors: Float[np.ndarray, "columns K"],
    given: Bool[np.ndarray, " columns"],
    asked: Bool[np.ndarray, " columns"],
) -> tuple[Float[np.ndarray, "K K"], Float[np.ndarray, "K asked"], float]:
    """Zᵀ Z, Zᵀ Y_a and |Y_a|² with Z = Y_g V_g."""
    count = vectors.shape[1]
    gram, cross, square = np.zeros((count, count)), np.zeros((count, int(asked.sum()))), 0.0
    for _, x in matrix.blocks():
        z, a = x[:, given] @ vectors[given], x[:, asked]
        gram += z.T @ z
        cross += z.T @ a
        square += float(np.square(a, dtype=np.float64).sum())
    return gram, cross, square
