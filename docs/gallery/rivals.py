"""One model against rivals.

`cst evaluate` answers whether CST is worth its training on your data. It holds out a quarter of the samples, hides
points of them, and asks CST, linear interpolation, a cubic spline, a Gaussian process and the last value for the same
points. The table, the sentence and the figure are its own. In a shell:

    cst evaluate curves.csv --steps 200
"""

import shlex

from cstformer.cli import main

main(shlex.split("data make spirals --curves 200 --observed 12 --noise 0.1 --irregular --out curves.csv"))
main(shlex.split("evaluate curves.csv --steps 200 --quiet --out picture.png"))
