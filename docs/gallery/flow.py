"""A flow and its velocity from derivatives.

Altimeters measure the height h of the sea surface along the tracks of satellites. Large currents follow its level
lines: the geostrophic velocity is u = −(g/f) ∂h/∂y to the east and v = (g/f) ∂h/∂x to the north. The model learns from
maps that were observed at 40 scattered points each. Its derivatives are exact, so the velocity needs no grid and no
finite differences.
"""

import matplotlib
import numpy as np

import cstformer as cst
from cstformer.baselines import BASELINES
from cstformer.report.style import STYLE, colour_of, new_figure, save_figure

G_OVER_F = 9.81 / 1e-4 / 1e5  # g / f at 43° N, from metres per 100 km to metres per second


def eddies(x, y, seed):
    """Height [m] and its derivatives [m / 100 km] at points (x, y) in 100 km: ten Gaussian eddies."""
    rng = np.random.default_rng(seed)
    h, h_x, h_y = 0.0, 0.0, 0.0
    for _ in range(10):
        (a, b), size, top = rng.uniform(0, 4, 2), rng.uniform(0.4, 0.8), rng.choice([-1, 1]) * rng.uniform(0.1, 0.3)
        bump = top * np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * size**2))
        h, h_x, h_y = h + bump, h_x - bump * (x - a) / size**2, h_y - bump * (y - b) / size**2
    return h, h_x, h_y


rng = np.random.default_rng(0)
places = rng.uniform(0, 4, (300, 40, 2))
heights = np.stack([eddies(*places[i].T, seed=i)[0] for i in range(300)]) + rng.normal(0, 0.01, (300, 40))
maps = cst.Samples(places, heights, coord_names=["x", "y"], value_names=["h"], units={"x": "100 km", "h": "m"})
model = cst.CST(steps=200, seed=0).fit(maps[:299])

axis = np.linspace(0.2, 3.8, 15)
grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
new = maps[299:]
h = model.predict(new, grid)[0, :, 0]
h_x, h_y = (d[0, :, 0] for d in model.derivatives(new, grid, [(1, 0), (0, 1)]))
east, north = -G_OVER_F * h_y, G_OVER_F * h_x
true_h, true_x, true_y = eddies(*grid.T, seed=299)

error = np.hypot(east + G_OVER_F * true_y, north - G_OVER_F * true_x)
speed = G_OVER_F * np.hypot(true_x, true_y)
linear = BASELINES["linear"]().fit(maps[:299]).predict(new, grid)[0, :, 0]
rmse = [np.square(answer - true_h).mean() ** 0.5 for answer in (h, linear)]
print(f"height: RMSE {100 * rmse[0]:.1f} cm, linear interpolation {100 * rmse[1]:.1f} cm")
print(f"velocity: RMSE {np.square(error).mean() ** 0.5:.2f} m/s; rms speed {np.square(speed).mean() ** 0.5:.2f} m/s")

matplotlib.rcParams.update(STYLE)
fig, axes = new_figure(1, 2, size=(7.4, 3.4), sharey=True)
panels = {"truth": (true_h, -G_OVER_F * true_y, G_OVER_F * true_x), "CST": (h, east, north)}
for ax, (name, (height, u, v)) in zip(axes[0], panels.items(), strict=True):
    image = ax.pcolormesh(axis, axis, height.reshape(15, 15), cmap="RdBu_r", vmin=-0.4, vmax=0.4, shading="gouraud")
    ax.quiver(grid[:, 0], grid[:, 1], u, v, scale=8, width=0.005)
    ax.set(title=name, xlabel="x [100 km]", aspect="equal", xlim=(0, 4), ylim=(0, 4))
axes[0, 1].plot(*places[299].T, ".", color=colour_of("test"), ms=4)
axes[0, 1].set_title("CST, from the green points")
axes[0, 0].set_ylabel("y [100 km]")
fig.colorbar(image, ax=axes[0], label="height [m]", shrink=0.8)
save_figure(fig, "picture.png")
