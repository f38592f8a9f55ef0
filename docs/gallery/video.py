"""A video between frames.

A camera moves in front of a scene, and only every second frame is kept. CST is trained on short clips of other scenes.
The frames that it never saw are queries at half-integer times. Its start `motion` moves what moves from one frame to
the next, and the network corrects it where that helps. The same on the command line:

    cst fit clip.tif --patch 8,8 --window 6 --start motion --out model
    cst predict model clip.tif --at 0:5:0.5 --out between.tif
"""

import matplotlib
import numpy as np

import cstformer as cst
from cstformer.datasets.moving_scene import MovingScene
from cstformer.report.style import STYLE, new_figure, save_figure

SIZE = (32, 48)
KEPT, BETWEEN = np.arange(6.0), np.arange(5) + 0.5


def grey(seed, times):
    """Frames (T, H, W, 1) of one scene at any times."""
    return MovingScene(seed=seed, size=SIZE, speed=4.0).frames(times).mean(-1, keepdims=True)


movies = np.stack([grey(seed, KEPT) for seed in range(30)])
clips = cst.frames_to_samples(movies, patch=(8, 8))
print(clips)
model = cst.CST(start="motion", steps=200, seed=0).fit(clips[:24])

at = cst.frame_queries(clips.layout, BETWEEN)
queries, new = np.tile(at, (6, 1, 1)), clips[24:]
answer = cst.samples_to_frames(cst.Samples(queries, model.predict(new, at), layout=clips.layout))
truth = np.stack([grey(seed, BETWEEN) for seed in range(24, 30)])
blend = (movies[24:, 1:] + movies[24:, :-1]) / 2
for name, frames in {"CST": answer, "blend of two frames": blend}.items():
    print(f"{name}: mean squared error {np.square(frames - truth).mean():.2e}")

matplotlib.rcParams.update(STYLE)
fig, axes = new_figure(1, 4, size=(7.4, 1.7))
errors = {"error of CST": np.abs(answer - truth), "error of the blend": np.abs(blend - truth)}
pictures = {"true frame, t = 2.5": truth, "CST": answer} | errors
for ax, (name, frames) in zip(axes[0], pictures.items(), strict=True):
    ax.imshow(frames[2, 2, ..., 0], cmap="gray", vmin=0, vmax=0.2 if name in errors else 1)
    ax.set(title=name, xticks=[], yticks=[], xlabel="column")
axes[0, 0].set_ylabel("row")
save_figure(fig, "picture.png")
