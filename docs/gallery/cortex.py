"""A cortex, from raw TIFF to waves.

A camera records a cortex under blue and violet light in turn. The violet frames show blood alone, and
`cst data preprocess-calcium` uses them to remove it from the blue ones. The cleaned movie is a series of a few spatial
modes. CST trained on this series gives frames and their derivatives at any time, and the velocity of a wave is
−∂ₜu ∇u / |∇u|². Needs `pip install "cstformer[neuro]"`.
"""

import matplotlib
import numpy as np
import tifffile

import cstformer as cst
from cstformer.cli import main
from cstformer.report.style import STYLE, new_figure, save_figure

SIZE, RATE, SPEED = 32, 20.0, 12.0  # pixels, raw frames per second, pixels per second


def activity(t):
    """Plane waves (T, H, W) that travel to the right and fade in and out."""
    col = np.arange(SIZE)[None, None, :] - 0.1 * np.arange(SIZE)[None, :, None]
    phase = 2 * np.pi * (col - SPEED * t[:, None, None]) / 24
    return np.sin(phase) * (0.6 + 0.4 * np.sin(2 * np.pi * t / 17)[:, None, None])


rng = np.random.default_rng(0)
t = np.arange(1200) / RATE
row, col = np.mgrid[:SIZE, :SIZE] - (SIZE - 1) / 2
cortex = np.hypot(row, col) < 15
blood = np.sin(2 * np.pi * 0.4 * t)[:, None, None] * (1 + 0.3 * row / SIZE)
blue = (np.arange(1200) % 2 == 0)[:, None, None]
light = np.where(cortex, 8000.0, 300.0) * (1 + 0.02 * blood + np.where(blue & cortex, 0.02 * activity(t), 0.0))
tifffile.imwrite("raw.tif", rng.poisson(light).astype(np.uint16))

command = "data preprocess-calcium raw.tif --wavelengths 470,405 --signal 470 --control 405 --out clean.zarr --quiet"
main(f"{command} --rate {RATE} --bin 1 --mask auto --correction regression".split())
movie, times = cst.load_movie("clean.zarr")

modes = cst.Modes(rank="auto").fit(movie)  # pixels outside the cortex are NaN
series = modes.coefficients(movie, times=times, window=32, stride=16, time_unit="s")
print(series)
model = cst.CST(steps=200, seed=0).fit(series)

moments = np.arange(0.55, 2.5, 0.1)  # between the frames of each window
frames = modes.frames(model.predict(series, moments))  # (windows, moments, H, W)
slopes = modes.frames(model.derivative(series, moments, (1,)), derivative=True)  # per second
gradient = np.stack(np.gradient(frames, axis=(2, 3)))  # per pixel
square = (gradient**2).sum(0)
steep = square > 0.3 * np.nanmax(square, axis=(2, 3), keepdims=True)
velocity = np.where(steep, -slopes * gradient / square, np.nan)
print(f"median speed {np.nanmedian(np.hypot(*velocity)):.1f} pixels/s; true speed {SPEED / np.hypot(1, 0.1):.1f}")

matplotlib.rcParams.update(STYLE)
fig, axes = new_figure(1, 3, size=(7.4, 2.5))
axes[0, 0].imshow(tifffile.imread("raw.tif")[40], cmap="gray")
axes[0, 1].imshow(movie[20, ..., 0] if movie.ndim == 4 else movie[20], cmap="RdBu_r", vmin=-3, vmax=3)
axes[0, 2].imshow(frames[1, 4], cmap="RdBu_r", vmin=-3, vmax=3)
rows, cols = np.mgrid[2:SIZE:3, 2:SIZE:3]
down, right = velocity[:, 1, 4, 2::3, 2::3]
axes[0, 2].quiver(cols, rows, right, down, angles="xy", scale=150, width=0.008)
for ax, title in zip(axes[0], ("raw blue frame", "cleaned frame", "between frames, with velocity"), strict=True):
    ax.set(title=title, xlabel="column")
axes[0, 0].set_ylabel("row")
save_figure(fig, "picture.png")
