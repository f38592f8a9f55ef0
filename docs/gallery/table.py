"""A table with gaps.

Two hundred fermentations were sampled by hand, each at its own times. The laboratory measured glucose more often than
biomass, so many cells of the table are empty. CST learns from all batches together, fills the gaps of each batch and
gives the growth rate, the derivative of biomass in time. The same on the command line:

    cst fit batches.csv --sample batch --out model
    cst predict model batches.csv --at 0:20:0.5 --derivative 1 --out rates.csv
"""

import numpy as np
import pandas as pd

import cstformer as cst

# The table: logistic growth with a rate and a delay of its own in each batch.
rng = np.random.default_rng(0)
rows = []
for batch in range(200):
    rate, delay = rng.uniform(0.5, 0.9), rng.uniform(6, 12)
    for hour in np.sort(rng.uniform(0, 20, 14)):
        biomass = 8 / (1 + np.exp(-rate * (hour - delay)))
        glucose = 20 - 2.2 * biomass + rng.normal(0, 0.4)
        weighed = rng.random() < 0.5
        rows.append((f"B{batch:03d}", hour, glucose, biomass + rng.normal(0, 0.2) if weighed else np.nan))
pd.DataFrame(rows, columns=["batch", "t [h]", "glucose [g/L]", "biomass [g/L]"]).to_csv("batches.csv", index=False)

batches = cst.Samples.load("batches.csv", group="batch")
print(batches.describe())
model = cst.CST(steps=200, seed=0).fit(batches[:180])  # the last twenty are new to the model

rate = model.derivative(batches[180:], [5.0, 10.0, 15.0], (1,))  # per hour, (20, 3, 2)
for name, values in zip(batches.sample_ids[180:183], rate[:3, :, 1].round(2), strict=True):
    print(f"{name}: biomass grows by {values} g/L per hour at 5, 10 and 15 h")
model.plot(batches[180:183]).savefig("picture.png", dpi=150)
