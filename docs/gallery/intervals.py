"""How sure it is.

`interval(context, at, level=0.9)` gives bounds for a new observation. `fit` calibrates them on samples that it holds
out. This script counts how many observations of new samples lie inside, and shows that a gap widens the band. What the
intervals promise, and what not, is on the page [How sure is it?](../intervals.md).
"""

import numpy as np

import cstformer as cst

rng = np.random.default_rng(0)
times = np.sort(rng.uniform(0, 1, (300, 14)), axis=1)
period, phase = rng.uniform(0.5, 0.8, (300, 1)), rng.uniform(0, 1, (300, 1))
values = np.sin(2 * np.pi * (times / period + phase)) + 0.15 * rng.normal(size=times.shape)
samples = cst.Samples(times, values, units={"t": "s"})
model = cst.CST(steps=200, validation=0.2, seed=0).fit(samples[:200])

# Every fourth point of a hundred new samples is hidden.
new = samples[200:]
hidden = np.broadcast_to(np.arange(14) % 4 == 2, new.coords.shape[:2])
context, truth = new.subset_points(~hidden), new.subset_points(hidden)
for level in (0.8, 0.9, 0.95):
    low, high = model.interval(context, new.coords, level)
    inside = ((new.values >= low) & (new.values <= high))[hidden].mean()
    print(f"level {level:.0%}: {inside:.1%} of the hidden observations covered, mean width {(high - low).mean():.2f}")

shown = new[:3]
gap = (shown.coords[..., 0] > 0.4) & (shown.coords[..., 0] < 0.7)
model.plot(shown.subset_points(~gap), hidden=shown.subset_points(gap)).savefig("picture.png", dpi=150)
