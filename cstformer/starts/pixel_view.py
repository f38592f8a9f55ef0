"""What the starts ``median`` and ``motion`` show of a patch: four quantities a pixel, with pixels around the patch.

==== =================================================================================================
size quantity
==== =================================================================================================
C    guess: the first estimate w · first + (1 − w) · second, with the weight w = sigmoid(log odds)
C    difference: first − second
1    log odds of the first estimate, over `LOUDEST`, so that it is of order one
1    expected error of the second estimate, 1 where it is as usual
==== =================================================================================================

``median``: the first estimate is the pixel itself, the second what the pixels around it say (`Trust`). ``motion``: the
first is the frame before, the second the frame after, both moved to the moment of the query (`Film`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from cstformer.taylor.series import Series

LOUDEST = 8.0  # log odds beyond which more makes no difference: sigmoid(8) = 0.9997
HALO = 2  # pixels shown around a patch


@dataclass(frozen=True)
class PixelView:
    """Sizes of a view: rows and columns of the patch, pixels around it, image channels."""

    rows: int
    cols: int
    channels: int
    halo: int = HALO

    @property
    def size(self) -> int:
        """Numbers of a view, flattened."""
        return (self.rows + 2 * self.halo) * (self.cols + 2 * self.halo) * (2 * self.channels + 2)

    @property
    def pixels(self) -> int:
        """Pixels of the patch itself."""
        return self.rows * self.cols

    def split(self, view: Series) -> tuple[Series, Series, Series, Series]:
        """Guess, difference, log odds and expected error of the pixels of the patch, without those around it.

        From (J, B, m, size) to (J, B, m, rows, cols, ·), the last axis C, C, 1 and 1.
        """
        C, halo = self.channels, self.halo

        def part(first: int, last: int) -> Series:
            def cut(c: Tensor) -> Tensor:
                c = c.unflatten(-1, (self.rows + 2 * halo, self.cols + 2 * halo, 2 * C + 2))
                return c[..., halo : halo + self.rows, halo : halo + self.cols, first:last]

            return view.map(cut)

        odds = part(2 * C, 2 * C + 1).map(lambda c: LOUDEST * c)
        return part(0, C), part(C, 2 * C), odds, part(2 * C + 1, 2 * C + 2)
