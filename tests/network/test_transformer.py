"""The whole model: exact derivatives, who depends on whom, padding, parameters."""

import itertools
import math

import pytest
import torch
from problems import (
    entry,
    nested_derivatives,
    normal,
    relative_error,
    start_of,
    tiny_context,
    tiny_network,
    uniform,
)

from cstformer.data.batch import Batch
from cstformer.network.architecture import Architecture, parameter_count
from cstformer.network.encoding import CalendarEncoding
from cstformer.network.transformer import ContinuousTransformer
from cstformer.starts.curves import STARTS
from cstformer.starts.pixel_view import PixelView
from cstformer.taylor import series
from cstformer.taylor.derivatives import plan, up_to
from cstformer.taylor.series import constant

PATTERNS, ATTENTIONS, ENCODINGS, NORMS = (
    ("context", "joint"),
    ("exact", "nystrom"),
    ("linear", "fourier"),
    ("pre", "post"),
)


def queries(d: int, m: int = 3, batch: int = 2, dtype=torch.float64) -> torch.Tensor:
    """Coordinates inside the box of the context and away from its points."""
    return (0.35 + 0.3 * uniform(batch, m, d, seed=20)).to(dtype)


def answer(network, context, start, at: torch.Tensor) -> torch.Tensor:
    """The plain pass: order 0."""
    x = constant(at)
    return network(context, x, start(x))[1].value


def each_query_alone(context: Batch, at: torch.Tensor) -> tuple[Batch, torch.Tensor]:
    """The m queries of a sample as m samples of one query."""
    m = at.shape[1]
    return context[torch.arange(len(context)).repeat_interleave(m)], at.reshape(-1, 1, at.shape[-1])


CALENDAR = dict(covariates=3, calendar=(5.0, 0.7))  # about a turn, and a part of one, over the domain


def known_everywhere(context: Batch, seed: int = 30) -> Batch:
    """The context with three features of covariates and two phases for each sample."""
    count = len(context)
    return context.replace(covariates=normal(count, 3, seed=seed), phases=6 * uniform(count, 2, seed=seed + 1))


def check_all_partials(d, order, start, **architecture):
    """The series pass against nested autograd of the plain pass.

    joint: along a simultaneous shift of all queries. context: each query is shifted alone, in a model asked
    for nothing else.
    """
    network, context, at = tiny_network(d, iterations=3, **architecture), tiny_context(d), queries(d)
    if "calendar" in architecture:
        context = known_everywhere(context)
    context = network.prepare(context, start_of(start, context))
    p = plan(d, up_to(d, order))
    line = series.straight_line(at, p.directions, p.order)
    y = network(context, line, start_of(start, context)(line))[1]
    if network.architecture.pattern == "context":
        context, at = each_query_alone(context, at)
    begin = start_of(start, context)
    want = nested_derivatives(lambda s: answer(network, context, begin, at + s), d, order)
    tolerance = 1e-6 if architecture.get("attention_kind") == "nystrom" else 1e-8
    torch.testing.assert_close(y.value, want[0].reshape(y.value.shape), rtol=1e-12, atol=1e-12)
    for q in up_to(d, order):
        assert relative_error(p.partial(y, q), entry(want, q).reshape(y.value.shape)) < tolerance, q


def product(*choices):
    return pytest.mark.parametrize("pattern, attention, encoding, norm", list(itertools.product(*choices)))


@product(PATTERNS, ATTENTIONS, ENCODINGS, NORMS)
def test_curves_to_order_three(pattern, attention, encoding, norm):
    layers = 1 if pattern == "joint" else 2  # in context, Nyström first matters to the second layer
    choices = dict(pattern=pattern, attention_kind=attention, encoding=encoding, norm=norm)
    check_all_partials(1, 3, "cubic", layers=layers, **choices)


@product(PATTERNS, ATTENTIONS, ENCODINGS, ("pre",))
def test_fields_to_order_two_mixed_partials_too(pattern, attention, encoding, norm):
    check_all_partials(3, 2, "cubic", pattern=pattern, attention_kind=attention, encoding=encoding, norm=norm)


@product(PATTERNS, ("exact",), ("fourier",), ("post",))
def test_fields_to_order_three(pattern, attention, encoding, norm):
    check_all_partials(3, 3, "cubic", pattern=pattern, attention_kind=attention, encoding=encoding, norm=norm)


@pytest.mark.parametrize("d, order", [(1, 3), (3, 2)])
@pytest.mark.parametrize("start", sorted(set(STARTS) - {"cubic"}))
def test_every_start(d, order, start):
    """The network composes with the series of a start; the starts themselves are tested in test_curves."""
    check_all_partials(d, order, start)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_plain_readout(pattern):
    check_all_partials(1, 2, "cubic", pattern=pattern, readout="plain", norm="post")


@pytest.mark.parametrize("d, order", [(1, 3), (3, 2)])
@product(PATTERNS, ATTENTIONS, ("fourier",), ("pre",))
def test_heads_that_look_near_a_place(d, order, pattern, attention, encoding, norm):
    check_all_partials(d, order, "cubic", pattern=pattern, attention_kind=attention, near=True)


@pytest.mark.parametrize("d, order, axis", [(1, 3, 0), (3, 2, 1)])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("norm", NORMS)
def test_derivatives_go_through_the_calendar(d, order, axis, pattern, norm):
    check_all_partials(d, order, "cubic", pattern=pattern, norm=norm, time_axis=axis, **CALENDAR)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_covariates_and_calendar_start_without_a_say(pattern):
    """A network with them starts from the weights of one without; once trained, each of them matters by itself."""
    context, at = known_everywhere(tiny_context(1)), constant(queries(1))
    start = start_of("cubic", context)
    torch.manual_seed(0)
    bare = ContinuousTransformer(Architecture(d=1, c=2, width=8, pattern=pattern)).double()
    torch.manual_seed(0)
    network = ContinuousTransformer(Architecture(d=1, c=2, width=8, pattern=pattern, **CALENDAR)).double()
    network.readout.decode.weight.data.normal_(generator=torch.Generator().manual_seed(1))
    bare.readout.decode.weight.data.copy_(network.readout.decode.weight)
    first = bare(context, at, start(at))[1].value
    assert torch.equal(network(context, at, start(at))[1].value, first)
    for part, name in ((network.covariates.weight, "covariates"), (network.calendar.project.weight, "phases")):
        with torch.no_grad():
            part.normal_(generator=torch.Generator().manual_seed(2))
        answers = [
            network(c, at, start(at))[1].value
            for c in (context, context.replace(**{name: getattr(context, name).flip(0)}))
        ]
        assert relative_error(*answers) > 1e-3, name
        with torch.no_grad():
            part.zero_()


def test_a_calendar_repeats_after_its_period():
    """Two samples alike but for a phase of a whole turn, or a time later by a period, get the same features."""
    encoding = CalendarEncoding((5.0,), 0, 4).double()
    encoding.project.weight.data.normal_(generator=torch.Generator().manual_seed(0))
    x, phase = queries(1), torch.tensor([[0.3], [1.0]], dtype=torch.float64)
    first = encoding(constant(x), phase).value
    torch.testing.assert_close(encoding(constant(x), phase + 2 * math.pi).value, first)
    torch.testing.assert_close(encoding(constant(x + 2 * math.pi / 5), phase).value, first)


def test_a_context_that_carries_its_start():
    check_all_partials(3, 2, "smooth", near=True, split_context=True)


def test_a_split_context_carries_the_initial_values_and_the_residual():
    network, context = tiny_network(1, split_context=True), tiny_context(1)
    start, at = start_of("smooth", context), constant(queries(1))
    context = network.prepare(context, start)
    torch.testing.assert_close(context.initial, start(constant(context.coords)).value)
    other = context.replace(values=context.values + 1)  # with the same initial values
    y = [network(c, at, start(at))[1].value for c in (context, other)]
    assert relative_error(*y) > 1e-3
    with torch.no_grad():
        network.residual.weight.zero_()
    y = [network(c, at, start(at))[1].value for c in (context, other)]
    assert torch.equal(*y)


def test_the_residual_is_what_the_start_left_of_observed_values():
    """None where the values are the initial ones; values that were not observed have none."""
    network, context = tiny_network(1, split_context=True), tiny_context(1)
    start, at = start_of("smooth", context), constant(queries(1))
    context = network.prepare(context, start)
    explained = context.replace(values=torch.where(context.observed, context.initial, torch.nan))
    y = network(explained, at, start(at))[1].value
    assert relative_error(y, network(context, at, start(at))[1].value) > 1e-3
    with torch.no_grad():
        network.residual.weight.zero_()
    assert torch.equal(y, network(context, at, start(at))[1].value)


def test_only_networks_that_read_initial_values_get_them():
    context = tiny_context(1)
    start = start_of("linear", context)
    assert tiny_network(1).prepare(context, start) is context
    view = PixelView(1, 1, 2, halo=0)
    ones = lambda x: x.map(lambda c: c.new_ones(*c.shape[:-1], view.size))  # noqa: E731
    assert tiny_network(1, view=view).prepare(context, ones).initial.shape == (2, 6, view.size)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_axes_of_the_data(pattern):
    """With the period of an axis, a whole period further is the same place; the spacing sets the width of heads."""
    network, context, at = tiny_network(2, near=True, pattern=pattern), tiny_context(2), queries(2)
    initial = constant(normal(2, 3, 2, seed=5))
    answers = lambda at: network(context, constant(at), initial)[1].value  # noqa: E731
    turn = torch.tensor([0.0, 1.25], dtype=torch.float64)
    assert relative_error(answers(at + turn), answers(at)) > 1e-3
    widths = [block.attention.nearness.log_width.detach().exp() for block in network.blocks]
    spacing = torch.tensor([0.1, 0.5], dtype=torch.float64)
    network.fit_axes({1: 1.25}, spacing)
    assert relative_error(answers(at + turn), answers(at)) < 1e-10
    assert relative_error(answers(at + turn.flip(0)), answers(at)) > 1e-3  # the other axis has no period
    for block, width in zip(network.blocks, widths, strict=True):
        torch.testing.assert_close(block.attention.nearness.log_width.detach().exp(), spacing * width)


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@product(PATTERNS, ATTENTIONS, ("fourier",), ("pre",))
@pytest.mark.parametrize("d", [1, 3])
def test_order_zero_of_a_series_is_the_plain_pass(d, pattern, attention, encoding, norm, dtype, tolerance):
    network = tiny_network(d, dtype=dtype, pattern=pattern, attention_kind=attention)
    context, at = tiny_context(d, dtype=dtype), queries(d, dtype=dtype)
    begin = start_of("smooth", context)
    line = series.straight_line(at, torch.eye(d), 2)
    carried = network(context, line, begin(line))[1].value
    assert relative_error(carried, answer(network, context, begin, at)) < tolerance


def test_context_answers_have_a_block_diagonal_jacobian():
    network, context = tiny_network(2), tiny_context(2)
    start, at = start_of("cubic", context), queries(2)
    jacobian = torch.func.jacrev(lambda x: answer(network, context, start, x))(at)  # (B, m, c, B, m, d)
    for i, j in itertools.product(range(6), repeat=2):
        block = jacobian[i // 3, i % 3, :, j // 3, j % 3]
        assert bool(block.abs().max() > 1e-4) == (i == j)
        assert i == j or not block.any()


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-12)])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_context_answer_does_not_depend_on_other_queries(attention, dtype, tolerance):
    network = tiny_network(2, dtype=dtype, attention_kind=attention)
    context = tiny_context(2, dtype=dtype)
    begin, at = start_of("smooth", context), uniform(2, 9, 2, seed=4, dtype=dtype)
    everything = answer(network, context, begin, at)
    for chosen in ([0], [8, 3], [5, 5, 1, 0], list(range(8, -1, -1))):
        assert relative_error(answer(network, context, begin, at[:, chosen]), everything[:, chosen]) < tolerance


def test_joint_answer_does_depend_on_other_queries():
    """By construction, and as the documentation says."""
    network, context = tiny_network(1, pattern="joint"), tiny_context(1)
    start, at = start_of("linear", context), queries(1)
    alone, together = answer(network, context, start, at[:, :1]), answer(network, context, start, at)[:, :1]
    assert relative_error(alone, together) > 1e-4


def padded(context: Batch, places: list[int]) -> Batch:
    """The same points with unobserved ones full of garbage in between."""
    b, n, d = context.coords.shape
    c = context.values.shape[-1]
    total = n + len(places)
    real = [i for i in range(total) if i not in places]
    coords = 50 * normal(b, total, d, seed=30, dtype=context.coords.dtype)
    values = 1e3 * normal(b, total, c, seed=31, dtype=context.values.dtype)
    observed = torch.zeros(b, total, c, dtype=torch.bool)
    coords[:, real], values[:, real], observed[:, real] = context.coords, context.values, context.observed
    return Batch(coords, values, observed)


@product(PATTERNS, ATTENTIONS, ("fourier",), ("pre",))
@pytest.mark.parametrize("d, start", [*((1, start) for start in STARTS), (2, "smooth")])
def test_padding_changes_nothing(d, start, pattern, attention, encoding, norm):
    network = tiny_network(d, pattern=pattern, attention_kind=attention)
    context, at = tiny_context(d), queries(d)
    more = padded(context, [0, 3, 8])
    line = series.straight_line(at, torch.eye(d), 2)
    want_context, want = network(context, line, start_of(start, context)(line))
    got_context, got = network(more, line, start_of(start, more)(line))
    assert relative_error(got.coefs, want.coefs) < 1e-10
    if pattern == "joint":
        assert want_context is not None and got_context is not None
        real = [i for i in range(9) if i not in (0, 3, 8)]
        there = context.exists
        assert relative_error(got_context[:, real][there], want_context[there]) < 1e-10


@product(PATTERNS, ATTENTIONS, ("fourier",), ("pre",))
def test_values_of_missing_channels_change_nothing(pattern, attention, encoding, norm):
    network, context = tiny_network(1, pattern=pattern, attention_kind=attention), tiny_context(1)
    assert bool((context.exists[..., None] & ~context.observed).any())
    garbage = Batch(context.coords, torch.where(context.observed, context.values, torch.nan), context.observed)
    x = constant(queries(1))
    begin = start_of("cubic", context)(x)
    want_context, want = network(context, x, begin)
    got_context, got = network(garbage, x, begin)
    assert torch.equal(got.coefs, want.coefs)
    assert want_context is None or torch.equal(got_context[context.exists], want_context[context.exists])


def test_a_missing_channel_is_told_from_an_observed_zero():
    network, context = tiny_network(1), tiny_context(1)
    x = constant(queries(1))
    begin = start_of("linear", context)(x)
    zero = Batch(context.coords, context.values * context.observed, torch.ones_like(context.observed))
    missing = Batch(context.coords, context.values * context.observed, context.observed)
    assert relative_error(network(zero, x, begin)[1].value, network(missing, x, begin)[1].value) > 1e-4


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_padding_queries_change_nothing_in_joint(attention):
    network, context = tiny_network(1, pattern="joint", attention_kind=attention), tiny_context(1)
    start, at = start_of("linear", context), queries(1, m=4)
    exists = torch.tensor([[True, False, True, True], [True, False, True, True]])
    x, less = constant(at), constant(at[:, [0, 2, 3]])
    all_context, padded_answer = network(context, x, start(x), exists=exists)
    want_context, want = network(context, less, start(less))
    assert relative_error(padded_answer.value[:, [0, 2, 3]], want.value) < 1e-10
    assert relative_error(all_context[context.exists], want_context[context.exists]) < 1e-10


@pytest.mark.parametrize("split", [False, True])
def test_hidden_points_are_left_out_of_a_training_step(split):
    """With gradients the context is packed; the answers are those of the whole context."""
    network, context, at = tiny_network(2, split_context=split), tiny_context(2), queries(2)
    observed = context.observed.clone()
    observed[:, 1] = False
    hidden = context.replace(observed=observed)
    start = start_of("linear", hidden)
    packed = network.prepare(hidden, start)
    assert packed.coords.shape[1] < hidden.coords.shape[1]
    with torch.no_grad():
        whole = network.prepare(hidden, start)
        assert whole.coords.shape == hidden.coords.shape
        want = network(whole, constant(at), start(constant(at)))[1].value
    assert relative_error(network(packed, constant(at), start(constant(at)))[1].value, want) < 1e-10


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("start", STARTS)
def test_order_of_context_points_changes_nothing(pattern, start):
    network, context, at = tiny_network(2, pattern=pattern), tiny_context(2), queries(2)
    shuffled = context.pick(torch.tensor([[4, 0, 5, 2, 1, 3]] * 2))
    want = answer(network, context, start_of(start, context), at)
    assert relative_error(answer(network, shuffled, start_of(start, shuffled), at), want) < 1e-8


@product(PATTERNS, ATTENTIONS, ("fourier",), ("pre",))
def test_batch_composition_changes_nothing(pattern, attention, encoding, norm):
    network = tiny_network(1, pattern=pattern, attention_kind=attention, iterations=2)
    context, at = tiny_context(1, batch=4), queries(1, batch=4)
    together = answer(network, context, start_of("smooth", context), at)
    for b in range(4):
        alone = context[torch.tensor([b])]
        got = answer(network, alone, start_of("smooth", alone), at[b : b + 1])
        assert relative_error(got, together[b : b + 1]) < 1e-10


@pytest.mark.parametrize("start", STARTS)
@product(PATTERNS, ATTENTIONS, ("fourier",), ("pre",))
def test_a_sample_without_any_point_gives_finite_answers_and_gradients(start, pattern, attention, encoding, norm):
    network, context = tiny_network(1, pattern=pattern, attention_kind=attention), tiny_context(1)
    observed = context.observed.clone()
    observed[1] = False
    empty = Batch(context.coords, context.values, observed)
    line = series.straight_line(queries(1), torch.eye(1), 2)
    y = network(empty, line, start_of(start, empty)(line))[1]
    assert bool(torch.isfinite(y.coefs).all())
    y.coefs.square().sum().backward()
    assert all(bool(torch.isfinite(p.grad).all()) for p in network.parameters() if p.grad is not None)
    want = answer(network, context, start_of(start, context), queries(1))
    assert relative_error(y.value[:1], want[:1]) < 1e-10  # the other sample does not notice


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_maps(pattern, attention):
    network, context = tiny_network(1, pattern=pattern, attention_kind=attention), tiny_context(1)
    x = constant(queries(1))
    maps: list[torch.Tensor] = []
    network(context, x, start_of("linear", context)(x), maps=maps)
    assert len(maps) == 2
    tokens = 6 if pattern == "context" else 9
    rows = 3 if pattern == "context" else 9
    for m in maps:
        assert m.shape == (2, 2, rows, tokens)
        assert not m[1, :, :, 5].any()  # nobody reads padding
        if pattern == "context" or attention == "exact":
            torch.testing.assert_close(m.sum(-1), torch.ones(2, 2, rows).double())
    of_context: list[torch.Tensor] = []
    if pattern == "context":
        network.encode(context, of_context)
        assert [m.shape for m in of_context] == [(2, 2, 6, 6)] * 2


@product(PATTERNS, ATTENTIONS, ENCODINGS, NORMS)
def test_every_parameter_receives_gradient_from_derivatives(pattern, attention, encoding, norm):
    network = tiny_network(1, pattern=pattern, attention_kind=attention, encoding=encoding, norm=norm)
    context, line = tiny_context(1), series.straight_line(queries(1), torch.eye(1), 2)
    network(context, line, start_of("smooth", context)(line))[1].coefs.square().sum().backward()
    silent = {name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().max() > 1e-12}
    assert not silent, silent


def test_gradients_of_weights_through_second_derivatives():
    """gradcheck of a loss on second derivatives with respect to some weights."""
    network, context = tiny_network(1, layers=1), tiny_context(1)
    line = series.straight_line(queries(1), torch.eye(1), 2)
    begin = start_of("cubic", context)(line)
    names = ["embed.weight", "blocks.0.attention.query.weight", "blocks.0.norm2.weight", "query_token"]
    weights = [network.get_parameter(n).detach().clone().requires_grad_() for n in names]

    def loss(*tensors):
        y = torch.func.functional_call(network, dict(zip(names, tensors, strict=True)), (context, line, begin))[1]
        return (y.at(2) ** 2).sum() + (y.at(1) ** 3).sum()

    assert torch.autograd.gradcheck(loss, weights, fast_mode=True)


def test_dropout_rests_in_evaluation():
    network, context = tiny_network(1, dropout=0.5), tiny_context(1)
    x = constant(queries(1))
    begin = start_of("linear", context)(x)
    first, second = (network(context, x, begin)[1].value for _ in range(2))
    assert not torch.equal(first, second)
    network.eval()
    assert torch.equal(network(context, x, begin)[1].value, network(context, x, begin)[1].value)


def test_parameter_count_by_hand():
    network = tiny_network(1, c=2, layers=1, encoding="linear")
    attention = 8 * 8 + 8 + 8 * 16 + 16 + 8 * 8 + 8
    block = attention + 2 * 16 + (8 * 12 + 12) + (12 * 8 + 8)
    assert parameter_count(network) == 2 * 16 + 16 + 8 + block + 16 + (16 + 2) + 4
    assert math.prod(network.readout.skip.weight.shape) == 4


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_second_projection_after_attention(attention):
    """One more matrix and bias a layer; all partial derivatives stay exact."""
    sizes = dict(attention_kind=attention, encoding="fourier", norm="pre", pattern="joint")
    check_all_partials(1, 2, "cubic", projections=2, **sizes)
    one, two = (parameter_count(tiny_network(projections=k, **sizes)) for k in (1, 2))
    assert two - one == 2 * (8 * 8 + 8)
