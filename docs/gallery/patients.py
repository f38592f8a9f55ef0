"""Patients with missing cells and covariates.

Each patient has a few blood samples after a dose, and the laboratory rarely measured both substances of a sample. Dose
and site are covariates: they are known for the whole patient, and the model reads them with every point. A missing
covariate stays NaN. The model with covariates is compared with one without them, at cells of new patients that both
models did not see. In so short a training the covariates do not help.
"""

import numpy as np
import pandas as pd

import cstformer as cst
from cstformer.models.scoring import hide_part

# Drug and metabolite: one-compartment kinetics, twice as fast at site S, proportional to the dose.
rng = np.random.default_rng(0)
rows = []
for patient in range(160):
    dose, site = rng.choice([50.0, 100.0, 200.0]), rng.choice(["N", "S"])
    absorb, remove = rng.uniform(0.9, 1.3), rng.uniform(0.15, 0.25) * (2 if site == "S" else 1)
    known_dose = dose if rng.random() < 0.9 else np.nan
    for hour in np.sort(rng.uniform(0, 24, 8)):
        drug = dose / 10 * (np.exp(-remove * hour) - np.exp(-absorb * hour)) + rng.normal(0, 0.3)
        metabolite = dose / 20 * (1 - np.exp(-remove * hour)) + rng.normal(0, 0.3)
        missing = rng.choice(["drug", "metabolite", "none"], p=[0.4, 0.4, 0.2])
        drug, metabolite = np.nan if missing == "drug" else drug, np.nan if missing == "metabolite" else metabolite
        rows.append((patient, hour, drug, metabolite, known_dose, site))
table = pd.DataFrame(rows, columns=["patient", "t [h]", "drug [mg/L]", "metabolite [mg/L]", "dose", "site"])

patients = cst.Samples.from_frame(table, group="patient", covariates=["dose", "site"])
print(patients)
context, hidden = hide_part(patients[120:])  # hides points and cells of forty new patients

model = cst.CST(steps=200, seed=0).fit(patients[:120])
without = cst.CST(steps=200, seed=0).fit(patients[:120].replace(covariates=None))
print(f"R² at hidden cells: {model.score(context, hidden):.3f} with covariates, ", end="")
print(f"{without.score(context.replace(covariates=None), hidden):.3f} without")
model.plot(context[:3], hidden=hidden[:3], rivals=[]).savefig("picture.png", dpi=150)
