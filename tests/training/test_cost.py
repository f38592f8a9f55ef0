"""What a training costs: against torch's own counter of operations, its memory profiler and the clock."""

import dataclasses
import time

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from cstformer.benchmarks.stopwatch import peak_megabytes
from cstformer.cli import main
from cstformer.data.batch import Batch
from cstformer.network.architecture import Architecture, parameter_count
from cstformer.network.transformer import ContinuousTransformer
from cstformer.taylor import series
from cstformer.taylor.derivatives import plan, up_to
from cstformer.training.cost import Workload, memory_bytes, traffic_bytes
from cstformer.training.settings import Settings

SMALL = Architecture(d=1, c=16, width=64, layers=3, heads=4, feedforward=128, landmarks=16)
POINTS, DUMMIES = 60, 60  # few enough for attention step by step: the counter is blind to torch's fused kernel


def work(a: Architecture, order: int, points: int = POINTS, dummies: int = DUMMIES):
    """Forward and backward of one sample, as a training step has them."""
    torch.manual_seed(0)
    network = ContinuousTransformer(a)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    seen = torch.ones(1, points, a.c, dtype=torch.bool)
    context = Batch(torch.rand(1, points, a.d), torch.randn(1, points, a.c), seen)
    directions = plan(a.d, up_to(a.d, order)).directions if order else torch.zeros(0, a.d)
    real, start = series.constant(context.coords), series.constant(context.values)
    dummy = series.straight_line(torch.rand(1, dummies, a.d), directions, order)
    first = dummy.map(lambda c: c[..., :1].expand(-1, -1, -1, a.c))

    def run() -> None:
        if a.pattern == "joint":
            at_real, at_dummies = network(context, dummy, first)
            (at_real.sum() + at_dummies.coefs.sum()).backward()
            return
        encoded = network.encode(context)
        total = network.read(encoded, real, start).value.sum()
        if order:
            total = total + network.read(encoded, dummy, first).coefs.sum()
        total.backward()

    return run, parameter_count(network)


@pytest.mark.parametrize(
    ("pattern", "kind", "d", "order"),
    [
        ("context", "exact", 1, 0),
        ("context", "exact", 3, 2),
        ("context", "nystrom", 3, 1),
        ("joint", "exact", 1, 0),
        ("joint", "exact", 3, 1),
        ("joint", "nystrom", 1, 2),
    ],
)
def test_operations_are_those_that_torch_counts(pattern, kind, d, order):
    a = dataclasses.replace(SMALL, pattern=pattern, attention_kind=kind, d=d)
    with FlopCounterMode(display=False) as counter:
        work(a, order)[0]()
    assert Workload(a, POINTS, DUMMIES, order, hidden=False).flops() == pytest.approx(
        counter.get_total_flops(), rel=0.1
    )


def test_the_paper_s_head_and_its_second_projection():
    a = dataclasses.replace(SMALL, norm="post", readout="plain", encoding="linear", projections=2, pattern="joint")
    with FlopCounterMode(display=False) as counter:
        work(a, 1)[0]()
    assert Workload(a, POINTS, DUMMIES, 1, hidden=False).flops() == pytest.approx(counter.get_total_flops(), rel=0.1)


@pytest.mark.parametrize("order", [0, 2])
@pytest.mark.parametrize("pattern", ["context", "joint"])
def test_memory_is_that_of_the_profiler_to_a_factor_of_two(pattern, order):
    a = dataclasses.replace(SMALL, pattern=pattern, d=3)
    run, _ = work(a, order)
    run()  # gradients exist from now on
    measured = peak_megabytes(run) * 2**20
    assert 0.5 < Workload(a, POINTS, DUMMIES, order, hidden=False).activations(order) / measured < 2


def test_growth_by_hand():
    a = dataclasses.replace(SMALL, d=3)
    assert [Workload(a, 10, 5, k).coefficients(k) for k in range(4)] == [1, 4, 13, 31]
    plain = Workload(a, 1000, 0, 0)
    # From 1000 points on attention among them dominates, and twice as many cost four times as much.
    far = [dataclasses.replace(plain, points=n).flops() for n in (100_000, 200_000)]
    assert far[1] / far[0] == pytest.approx(4, rel=0.01)
    every = Workload(a, 100, 50, 2)
    seldom = dataclasses.replace(every, sobolev_every=4)
    assert seldom.flops() == pytest.approx(0.25 * every.flops() + 0.75 * 3 * every.forward(0))
    assert memory_bytes(10, 5, "ddp") == memory_bytes(10)
    assert traffic_bytes(10, 1000) == pytest.approx(2 * 4 * 10, rel=0.01)


def test_settings_say_what_a_step_does():
    made = Workload.of(SMALL, 7, Settings(order=2, dummies=0, hide=0.0, sobolev_every=8))
    assert (made.order, made.hidden, made.sobolev_every) == (0, False, 8)
    assert Workload.of(SMALL, 7, Settings(root=True)).sobolev_every == 1


def processor_seconds(run) -> float:
    before = time.process_time()
    run()
    return time.process_time() - before


@pytest.mark.long
def test_times_follow_the_operations():
    """Over a factor of thirty in operations, wide networks keep their operations a second to a factor of three."""
    wide = dataclasses.replace(SMALL, width=256, feedforward=1024, heads=8)
    widest = dataclasses.replace(wide, width=512, feedforward=2048, pattern="joint")
    sizes = [(wide, 0, 60), (wide, 1, 120), (dataclasses.replace(wide, pattern="joint"), 1, 120), (widest, 2, 200)]
    works = [work(a, order, dummies=dummies)[0] for a, order, dummies in sizes]
    seconds = [min(processor_seconds(run) for _ in range(5)) for run in works]
    operations = [Workload(a, POINTS, dummies, order, hidden=False).flops() for a, order, dummies in sizes]
    rates = [number / spent for number, spent in zip(operations, seconds, strict=True)]
    print([f"{number:.2e} at {rate / 1e9:.1f} GFLOP/s" for number, rate in zip(operations, rates, strict=True)])
    assert max(operations) / min(operations) > 30
    assert max(rates) / min(rates) < 3


def test_the_command_prints_the_cost_of_a_recording(capsys):
    assert main(["models", "--experiment", "calcium", "--cost", "--hours", "100", "--processes", "8"]) == 0
    text = capsys.readouterr().out
    assert "CST-base" in text and "719,999" in text.replace("\n", "")
    assert main(["models", "--experiment", "spirals", "--cost"]) == 2
    assert "--cost" in capsys.readouterr().err
