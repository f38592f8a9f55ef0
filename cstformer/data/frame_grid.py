"""Tokens of a batch as frames and back: which frame and patch a token is, and where its pixels lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from cstformer.data.batch import Batch
from cstformer.data.layout import PatchLayout
from cstformer.data.units import Scaling


@dataclass(frozen=True)
class FrameGrid:
    """A patch layout in the model's units: pixel = origin + extent · coordinate along rows and columns.

    ``locate`` numbers the tokens of a batch once; the other methods rely on these numbers. Frames are (B, T, H, W, C)
    tensors, T the largest number of frames of a sample.

    Examples
    --------
    >>> grid = FrameGrid(PatchLayout((2, 4), (2, 2)), (0.5, 0.5), (1.0, 2.0))
    >>> coords = torch.tensor([[[0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]])
    >>> batch = grid.locate(Batch(coords, torch.arange(12.0).reshape(1, 3, 4), torch.ones(1, 3, 4) > 0))
    >>> batch.frame.tolist(), batch.patch.tolist()
    ([[0, 0, 1]], [[0, 1, 0]])
    >>> grid.frames(batch, batch.values)[0, 0, :, :, 0].tolist()
    [[0.0, 1.0, 4.0, 5.0], [2.0, 3.0, 6.0, 7.0]]
    """

    layout: PatchLayout
    origin: tuple[float, float]
    extent: tuple[float, float]

    @classmethod
    def of(cls, layout: PatchLayout, scaling: Scaling) -> FrameGrid:
        """The grid of a layout in the units of a scaling of (t, row, col)."""
        row, col = (float(x) for x in scaling.low[1:])
        height, width = (float(x) for x in scaling.span[1:])
        return cls(layout, (row, col), (height, width))

    def pixel(self, x: Tensor, axis: int) -> Tensor:
        """Pixel position along an axis (0: rows, 1: columns) of coordinates in the model's units."""
        return self.origin[axis] + self.extent[axis] * x

    def first_pixel(self, x: Tensor, axis: int) -> Tensor:
        """Position of the first pixel of a patch along an axis, from the coordinate of its centre."""
        return self.pixel(x, axis) - self.layout.half[axis]

    def locate(self, batch: Batch) -> Batch:
        """Number the frame and the patch of each token; tokens are in the order of time.

        Padding gets frame 0 and patch 0; nothing reads them.
        """
        t, exists = batch.coords[..., 0], batch.exists
        later = torch.zeros_like(exists)
        later[:, 1:] = (t[:, 1:] > t[:, :-1]) & exists[:, 1:]
        frame = later.cumsum(1) * exists
        rows, cols = self.layout.grid
        row, col = (
            (self.first_pixel(batch.coords[..., 1 + axis], axis) / self.layout.patch[axis]).round().long()
            for axis in (0, 1)
        )
        patch = (row.clamp(0, rows - 1) * cols + col.clamp(0, cols - 1)) * exists
        return batch.replace(frame=frame, patch=patch)

    def frames(self, batch: Batch, x: Float[Tensor, "B n c"]) -> Float[Tensor, "B T H W C"]:
        """Put the pixels of tokens ``x`` where ``batch`` has them; zero where no token is.

        H and W are those of whole patches, which may stick out of the frame.
        """
        slot, count = self._slots(batch)
        (rows, cols), (p, q) = self.layout.grid, self.layout.patch
        flat = x.new_zeros(len(x), count * rows * cols + 1, self.layout.c)
        flat.scatter_(1, slot[..., None].expand_as(x), x)
        grid = flat[:, :-1].unflatten(1, (count, rows, cols)).unflatten(-1, (p, q, self.layout.channels))
        return grid.permute(0, 1, 2, 4, 3, 5, 6).flatten(4, 5).flatten(2, 3)

    def tokens(self, batch: Batch, frames: Float[Tensor, "B T H W C"]) -> Float[Tensor, "B n c"]:
        """Cut the patches of a batch out of frames: the inverse of `frames`."""
        slot, _ = self._slots(batch)
        (rows, cols), (p, q) = self.layout.grid, self.layout.patch
        grid = frames.unflatten(3, (cols, q)).unflatten(2, (rows, p)).permute(0, 1, 2, 4, 3, 5, 6)
        flat = torch.cat([grid.flatten(4).flatten(1, 3), frames.new_zeros(len(frames), 1, self.layout.c)], 1)
        return flat.gather(1, slot[..., None].expand(-1, -1, self.layout.c))

    def read(
        self, batch: Batch
    ) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"], Float[Tensor, "B T H W C"], Bool[Tensor, "B T H W C"]]:
        """Times of the frames, which of them exist, their pixels, and which pixels were observed."""
        assert batch.frame is not None, "locate the batch first"
        t, present = batch.coords[..., 0], batch.exists
        _, count = self._slots(batch)
        exists = torch.zeros(len(t), count, dtype=torch.bool, device=t.device)
        exists = exists.scatter_reduce(1, batch.frame, present, "amax")
        latest = t.new_full((len(t), count), -torch.inf)
        latest = latest.scatter_reduce(1, batch.frame, t.masked_fill(~present, -torch.inf), "amax")
        times = torch.where(exists, latest, torch.zeros_like(latest))
        if self.complete(batch):  # the usual case, at half the cost
            values = self.frames(batch, batch.values)
            return times, exists, values, exists[..., None, None, None].expand_as(values)
        values, seen = (self.frames(batch, x) for x in (batch.values * batch.observed, batch.observed))
        return times, exists, values, seen

    def complete(self, batch: Batch) -> bool:
        """Whether every pixel of every patch of every frame that exists was observed."""
        assert batch.frame is not None, "locate the batch first"
        present = batch.exists
        exists = torch.zeros_like(present).scatter_reduce(1, batch.frame, present, "amax")  # (B, n): frames come first
        tokens = int(present.sum())
        patches = self.layout.grid[0] * self.layout.grid[1]
        return int(exists.sum()) * patches == tokens and tokens * self.layout.c == int(batch.observed.sum())

    def whole(self, batch: Batch) -> tuple[Float[Tensor, "B T"], Bool[Tensor, "B T"], Float[Tensor, "B T H W C"]]:
        """Times, existence and pixels of the frames, with missing pixels filled and nothing beyond the frame."""
        times, exists, frames, seen = self.read(batch)
        # A patch may stick out of the frame; cut that off, so that the edge pixel continues there.
        height, width = self.layout.frame
        return times, exists, fill_pixels(frames, seen, exists)[:, :, :height, :width]

    def change(self, batch: Batch, change: Callable[[Tensor], Tensor]) -> Float[Tensor, "B n c"]:
        """Values of the same tokens after ``change``, a function of whole frames (B, T, H, W, C)."""
        frames = self.frames(batch, batch.values)
        inside = (slice(None), slice(None), slice(self.layout.frame[0]), slice(self.layout.frame[1]))
        frames[inside] = change(frames[inside])
        return self.tokens(batch, frames)

    def shift(self, batch: Batch, target: Tensor, offset: tuple[int, int]) -> tuple[Batch, Tensor]:
        """The same frames in patches that lie ``offset`` pixels further, and so another value of each pixel.

        Patches of frames that are not periodic are unobserved where they would leave the frame.
        """

        def moved(x: Tensor) -> Tensor:
            return self.tokens(batch, self.frames(batch, x).roll((-offset[0], -offset[1]), (2, 3)))

        observed = moved(batch.observed)
        coords = batch.coords.clone()
        for axis, step in enumerate(offset):
            coords[..., 1 + axis] += step / self.extent[axis]
            if step and not self.layout.periodic:
                last = self.pixel(coords[..., 1 + axis], axis) + self.layout.half[axis]
                observed &= (last < self.layout.padded[axis] - 0.5)[..., None]
        return Batch(coords, moved(batch.values), observed), moved(target)

    def _slots(self, batch: Batch) -> tuple[Int[Tensor, "B n"], int]:
        """Place of each token among all patches of all frames, and the number of frames."""
        assert batch.frame is not None and batch.patch is not None, "locate the batch first"
        count, size = int(batch.frame.max()) + 1, self.layout.grid[0] * self.layout.grid[1]
        # Padding, and tokens hidden from this batch, all go to one slot past the end.
        return torch.where(batch.exists, batch.frame * size + batch.patch, count * size), count


def fill_pixels(
    frames: Float[Tensor, "B T H W C"], seen: Bool[Tensor, "B T H W C"], exists: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T H W C"]:
    """Give pixels that are missing in some frames their mean over the others; pixels never seen stay 0."""
    if bool((seen | ~exists[..., None, None, None]).all()):
        return frames
    mean = (frames * seen).sum(1, keepdim=True) / seen.sum(1, keepdim=True).clamp_min(1)
    return torch.where(seen, frames, mean)


def distinct_times(times: Float[Tensor, "B m"]) -> tuple[Float[Tensor, "B u"], Int[Tensor, "B m"]]:
    """Distinct times of each row in increasing order, padded by the last, and which of them each entry is.

    >>> [x.tolist() for x in distinct_times(torch.tensor([[3.0, 1.0, 3.0], [2.0, 2.0, 2.0]]))]
    [[[1.0, 3.0], [2.0, 2.0]], [[1, 0, 1], [0, 0, 0]]]
    """
    ordered, place = times.sort(1)
    rank = torch.zeros_like(place)
    rank[:, 1:] = (ordered[:, 1:] > ordered[:, :-1]).cumsum(1)
    which = torch.empty_like(place).scatter(1, place, rank)
    moments = ordered[:, -1:].repeat(1, int(rank.max()) + 1).scatter(1, rank, ordered)
    return moments, which
