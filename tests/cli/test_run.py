"""``cst run``: what it refuses. Whole runs are in tests/experiments, ``all`` is in tests/report/test_overview.py."""

import pytest


def test_unknown_experiment(refused):
    refused(["run", "spiral"], "unknown experiment 'spiral'; did you mean 'spirals'?")


@pytest.mark.parametrize("option", ["--devices=2", "--strategy=fsdp", "--models=CST"])
def test_options_of_one_experiment(refused, option):
    refused(["run", "all", option], f"{option.split('=')[0]} is for one experiment; leave it out with `all`")
