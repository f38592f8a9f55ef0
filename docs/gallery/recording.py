"""One long recording.

A tide gauge measured the level of the sea for two months. The clock is irregular, and the gauge failed five times for
several hours. `Samples.windows` cuts the recording into windows of two days to train on. The model remembers their
length and reads the whole recording in `predict`: it blends the answers of overlapping windows. The same on the command
line:

    cst fit tide.csv --window 48 --out model
    cst predict model tide.csv --at 0:1440:0.5 --out level.csv
"""

import matplotlib
import numpy as np

import cstformer as cst
from cstformer.baselines import BASELINES
from cstformer.report.style import STYLE, colour_of, new_figure, save_figure


def tide(t):
    """Level in metres at hour t: two tides a day, which are higher every two weeks, and one tide a day."""
    return (1 + 0.4 * np.cos(2 * np.pi * t / 354)) * np.cos(2 * np.pi * t / 12.42) + 0.3 * np.sin(2 * np.pi * t / 23.93)


rng = np.random.default_rng(0)
hours = np.sort(rng.uniform(0, 1440, 1400))
failed = np.zeros(1400, dtype=bool)
for begin in (200, 425, 700, 980, 1250):
    failed |= (hours > begin) & (hours < begin + 7)
level = np.where(failed, np.nan, tide(hours) + rng.normal(0, 0.1, 1400))

recording = cst.Samples(hours, level[None], value_names=["level"], units={"t": "h", "level": "m"})
windows = recording.windows(length=48.0, stride=24.0)
print(windows)
model = cst.CST(steps=200, seed=0).fit(windows)
linear = BASELINES["linear"]().fit(windows)

grid = np.arange(5.0, 1435.0, 0.5)
answers = {m.label: m.predict(recording, grid)[0, :, 0] for m in (model, linear)}
inside = np.any([(grid > begin) & (grid < begin + 7) for begin in (200, 425, 700, 980, 1250)], axis=0)
for name, answer in answers.items():
    error = np.square(answer - tide(grid))
    print(f"{name}: RMSE {error.mean() ** 0.5:.3f} m, where the gauge failed {error[inside].mean() ** 0.5:.3f} m")

matplotlib.rcParams.update(STYLE)
fig, ((ax,),) = new_figure(size=(7.4, 2.8))
shown = (grid > 400) & (grid < 460)
ax.plot(grid[shown], tide(grid[shown]), color=colour_of("truth"), lw=3, label="true level")
for name, answer in answers.items():
    ax.plot(grid[shown], answer[shown], color=colour_of(name), label=name)
near = (hours > 400) & (hours < 460)
ax.plot(hours[near], level[near], ".", color=colour_of("observed"), label="measured")
ax.set(xlabel="time [h]", ylabel="level [m]")
ax.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1))
save_figure(fig, "picture.png")
