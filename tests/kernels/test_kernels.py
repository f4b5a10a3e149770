"""Every backend of a core's scan against the reference in float64: outputs, final state and every gradient."""

from types import SimpleNamespace
from typing import get_type_hints

import pytest
import torch
from torch.nn import functional

from helpers.cores import CORES, INPUT, RMC_OPTIONS
from helpers.scans import case
from rmc_agents.config import Config, RunConfig
from rmc_agents.cores import GRU, LSTM, RMC, RNN, MinGRU, RelationalRNN, Transformer, make_core
from rmc_agents.kernels import dispatch, lookup, products
from rmc_agents.kernels.products import bf16_supported
from rmc_agents.kernels.tape import Tape, tensors
from rmc_agents.kernels.weights import RMCState
from rmc_agents.train.bench.cli import Arguments as BenchArguments

ONE_BLOCK = {name: options for name, options in RMC_OPTIONS.items() if options.get("num_blocks", 1) == 1}
AS_ODD = ("wide-keys", "cut-identity", "one-head")  # attention is compiled for its sizes: `rmc-odd` stands for these
FUSED = {f"rmc-{name}": (RMC, options) for name, options in ONE_BLOCK.items() if name not in AS_ODD} | {
    "rmc-odd": (RMC, {"mem_slots": 5, "head_size": 19, "num_heads": 3, "key_size": 7}),
    "lstm": (LSTM, {"hidden_size": 6}),
    "lstm-odd": (LSTM, {"hidden_size": 37}),
    "gru": (GRU, {"hidden_size": 6}),
    "gru-odd": (GRU, {"hidden_size": 37}),
    "mingru": (MinGRU, {"hidden_size": 6}),
    "mingru-as-wide": (MinGRU, {"hidden_size": INPUT, "num_layers": 1}),
    "mingru-odd": (MinGRU, {"hidden_size": 37, "num_layers": 3}),
    "rnn": (RNN, {"hidden_size": 6}),
    "rnn-odd": (RNN, {"hidden_size": 37}),
}
SHAPES = [(1, 1), (3, 300)]  # steps, lanes; (7, 3) in test_by_either_library


def build(name):
    torch.manual_seed(0)
    kind, options = FUSED[name]
    core = kind(INPUT, **options)
    core.backend = "fused"
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return core


def results(unroll, inputs, should_reset, state, initial_state, weights):
    """Outputs, final state, and gradients of a loss that depends on all of them."""
    inputs = inputs.detach().clone().requires_grad_()
    state, initial_state = (type(s)(*(x.detach().clone().requires_grad_() for x in s)) for s in (state, initial_state))
    outputs, final = unroll(inputs, should_reset, state, initial_state, weights)
    generator = torch.Generator().manual_seed(2)
    loss = sum(
        (x * torch.randn(x.shape, generator=generator, dtype=torch.float64).to(x)).sum() for x in (outputs, *final)
    )
    wanted = [inputs, *state, *initial_state, *tensors(weights)]
    gradients = torch.autograd.grad(loss, wanted, materialize_grads=True)
    return outputs.detach(), *(x.detach() for x in final), *gradients


def reference_unroll(core):
    return dispatch.REFERENCES[core.kernel]


def expected_results(core, name, inputs, should_reset, state, initial_state):
    core = type(core)(INPUT, **FUSED[name][1]).double()
    core.load_state_dict(build(name).state_dict())
    to_double = [type(s)(*(x.double() for x in s)) for s in (state, initial_state)]
    return results(reference_unroll(core), inputs.double(), should_reset, *to_double, core.weights())


def assert_close(actual, expected):
    assert len(actual) == len(expected)
    for number, (a, e) in enumerate(zip(actual, expected, strict=True)):
        scale = e.abs().max().item() + 1e-3
        torch.testing.assert_close(a.double(), e, rtol=0, atol=2e-5 * scale, msg=lambda m, n=number: f"result {n}: {m}")


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize(("steps", "lanes"), SHAPES)
def test_fused_is_the_reference(name, steps, lanes):
    core = build(name)
    arguments = case(core, steps, lanes)
    actual = results(core.chosen_scan().unroll, *arguments, core.weights())
    assert_close(actual, expected_results(core, name, *arguments))


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("lanes", [1, 17])
def test_stepping_is_the_reference(name, lanes):
    core = build(name)
    inputs, should_reset, state, initial_state = case(core, 7, lanes)
    expected, final = reference_unroll(core)(inputs, should_reset, state, initial_state, core.weights())
    outputs = []
    with core.stepping(state) as step:
        for x, flags in zip(inputs, should_reset, strict=True):
            output, state = step(x, flags, state)
            outputs.append(output)
    assert_close([torch.stack(outputs), *state], [expected.detach().double(), *(x.detach().double() for x in final)])
    with core.stepping(state) as step, pytest.raises(ValueError, match=r"expected ((1|17) lanes|\[(2|18), \d+\])"):
        step(*(x[:, :1].repeat(1, lanes + 1, *[1] * (x.ndim - 2))[0] for x in (inputs, should_reset)), state)


@pytest.fixture(params=["mkl", "onednn"])
def library(request, monkeypatch):
    """Products by one of the two libraries, however small they are."""
    if request.param == "onednn" and not products.HAS_ONEDNN:
        pytest.skip("oneDNN is not used on this processor")
    monkeypatch.setattr(products, "ONEDNN", request.param == "onednn")
    monkeypatch.setattr(products, "WORTHWHILE", 0)


@pytest.mark.parametrize("name", FUSED)
def test_by_either_library(name, library):
    core = build(name)
    arguments = case(core, 7, 3)
    assert_close(
        results(core.chosen_scan().unroll, *arguments, core.weights()), expected_results(core, name, *arguments)
    )


@pytest.mark.parametrize("rows", [1, 3, products.BLOCK - 1, products.BLOCK, 2 * products.BLOCK + 5])
def test_products(rows, library):
    """Weights as they are and transposed, and columns that are not contiguous."""
    torch.manual_seed(0)
    x, y, weight = torch.randn(rows, 9), torch.randn(rows, 21), torch.randn(7, 9)
    expected = x.double() @ weight.double().t()
    torch.testing.assert_close(products.product(x, weight).double(), expected, rtol=1e-5, atol=1e-5)
    transposed = weight.t().contiguous().t()
    torch.testing.assert_close(products.product(x, transposed).double(), expected, rtol=1e-5, atol=1e-5)
    expected = x.double().t() @ y.double()
    torch.testing.assert_close(products.transposed_product(x, y).double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 5, 130])
def test_rectified_linear_is_that_of_torch(rows, library):
    torch.manual_seed(0)
    inputs = [torch.randn(rows, 9), torch.randn(33, 9), torch.randn(33)]
    gradient, outcomes = torch.randn(rows, 33), []
    for layer, dtype in ((products.rectified_linear, torch.float32), (None, torch.float64)):
        leaves = [x.to(dtype).requires_grad_() for x in inputs]
        y = layer(*leaves) if layer else functional.relu(functional.linear(*leaves))
        outcomes.append([y.detach(), *torch.autograd.grad(y, leaves, gradient.to(dtype))])
    assert_close(*outcomes)
    with torch.no_grad():
        assert torch.equal(products.rectified_linear(*inputs), outcomes[0][0])


@pytest.mark.parametrize("rows", [1, 5, 130])
def test_rectified_lookup_is_a_linear_layer_over_one_hot_inputs(rows):
    torch.manual_seed(0)
    table, bias, gradient = torch.randn(11, 33), torch.randn(33), torch.randn(rows, 33)
    chosen = torch.randint(0, 11, (rows, 7), dtype=torch.int32)
    one_hot = functional.one_hot(chosen.long(), 11).sum(1)
    outcomes = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in (table, bias)]
        if dtype == torch.float32:
            y = lookup.rectified_lookup(chosen, *leaves)
        else:
            y = functional.relu(one_hot.to(dtype) @ leaves[0] + leaves[1])
        outcomes.append([y.detach(), *torch.autograd.grad(y, leaves, gradient.to(dtype))])
    assert_close(*outcomes)


@pytest.mark.parametrize("name", FUSED)
def test_uninitialised_memory_is_never_read(name, monkeypatch):
    """Every buffer, new or used before, is full of NaN when the scan begins."""
    core = build(name)
    arguments = case(core, 7, 3)
    Tape._spare.clear()
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *a, **k: empty(*a, **k).fill_(torch.nan))
    fresh = results(core.chosen_scan().unroll, *arguments, core.weights())
    for tape in Tape._spare.values():
        for buffer in _buffers(tape):
            buffer.fill_(torch.nan)
    used = results(core.chosen_scan().unroll, *arguments, core.weights())
    assert not any(name in vars(tape) for tape in Tape._spare.values() for name in ("outputs", "_outputs", "_state"))
    expected = expected_results(core, name, *arguments)
    assert_close(fresh, expected)
    assert_close(used, expected)
    assert all(torch.equal(a, b) for a, b in zip(fresh, used, strict=True))


def _buffers(tape):
    for value in vars(tape).values():
        yield from (x for x in tensors(tuple(value) if isinstance(value, list) else value) if x.is_floating_point())


@pytest.mark.parametrize("name", FUSED)
class TestReset:
    """Exact, as on the reference (see test_cores)."""

    def test_output_is_bitwise_that_of_a_fresh_sequence(self, name):
        core = build(name)
        inputs, _, state, _ = case(core, 7, 3)
        should_reset = torch.zeros(7, 3, dtype=torch.bool)
        should_reset[3] = True
        other = torch.cat([torch.randn(3, 3, INPUT), inputs[3:]])
        outputs, after = core.unroll(inputs, should_reset, core.initial_state(3))
        others, other_after = core.unroll(other, should_reset, state)
        assert not torch.equal(outputs[2], others[2])
        assert torch.equal(outputs[3:], others[3:])
        assert all(torch.equal(a, b) for a, b in zip(after, other_after, strict=True))

    def test_gradient_stops_exactly_and_nan_is_gone(self, name):
        core = build(name)
        inputs, _, state, _ = case(core, 7, 3)
        should_reset = torch.zeros(7, 3, dtype=torch.bool)
        should_reset[3, :2] = True
        should_reset[0, 2] = True
        for leaf in state:
            leaf[2] = torch.nan
            leaf.requires_grad_()
        inputs.requires_grad_()
        outputs, after = core.unroll(inputs, should_reset, state)
        assert outputs.isfinite().all()
        loss = outputs[3:].square().sum() + sum(leaf.square().sum() for leaf in after)
        d_inputs, *d_others = torch.autograd.grad(loss, [inputs, *state, *core.parameters()])
        assert not d_inputs[:3, :2].any()
        assert d_inputs[3:].any(dim=-1).all()
        assert d_inputs[:3, 2].any()
        assert all(not leaf.any() for leaf in d_others[: len(state)])
        assert all(x.isfinite().all() for x in d_others)

    def test_lanes_do_not_touch_each_other(self, name):
        core = build(name)
        inputs, should_reset, state, _ = case(core, 7, 3, resets=0.0)
        outputs, _ = core.unroll(inputs, should_reset, state)
        inputs = inputs.clone()
        inputs[:, 0] = torch.nan
        others, _ = core.unroll(inputs, should_reset, state)
        assert torch.equal(outputs[:, 1:], others[:, 1:])


@pytest.mark.parametrize("name", ["rmc-plain", "lstm", "gru", "mingru", "rnn"])
class TestGraph:
    """What all tapes have in common."""

    def test_two_at_once_keep_apart(self, name):
        core = build(name)
        inputs, should_reset, state, _ = case(core, 7, 3)
        parameters = list(core.parameters())
        alone, _ = core.unroll(inputs, should_reset, state)
        expected = torch.autograd.grad(alone.sum(), parameters)
        first, second = core.unroll(inputs, should_reset, state)[0], core.unroll(2 * inputs, should_reset, state)[0]
        second.sum().backward()
        third, _ = core.unroll(3 * inputs, should_reset, state)
        third.sum().backward()
        assert torch.equal(first, alone)
        assert all(map(torch.equal, torch.autograd.grad(first.sum(), parameters), expected))

    def test_weights_that_changed_are_noticed(self, name):
        core = build(name)
        inputs, should_reset, state, _ = case(core, 7, 3)
        outputs, _ = core.unroll(inputs, should_reset, state)
        with torch.no_grad():
            next(core.parameters()).add_(1.0)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            outputs.sum().backward()

    def test_backward_twice_is_refused(self, name):
        core = build(name)
        outputs, _ = core.unroll(*case(core, 7, 3)[:3])
        outputs.sum().backward(retain_graph=True)
        with pytest.raises(RuntimeError, match="goes backward once for every unroll"):
            outputs.sum().backward()


@pytest.mark.skipif(not bf16_supported(), reason="this processor has no instructions for bfloat16")
@pytest.mark.parametrize("name", FUSED)
class TestBfloat16:
    def test_it_is_the_reference_up_to_rounding(self, name):
        core = build(name)
        arguments = case(core, 7, 3)
        in_float32 = results(core.chosen_scan().unroll, *arguments, core.weights())
        core.precision = "bf16"
        rough, exact = (
            results(unroll, *arguments, core.weights())
            for unroll in (core.chosen_scan().unroll, reference_unroll(core))
        )
        assert not torch.equal(rough[0], in_float32[0])
        for a, b in zip(rough, exact, strict=True):
            assert a.dtype == torch.float32
            assert a.norm() == 0 == b.norm() or functional.cosine_similarity(a.flatten(), b.flatten(), dim=0) > 0.95


class TestChoice:
    def test_bf16_is_refused_where_nothing_has_it(self, monkeypatch):
        core = RMC(INPUT, num_blocks=2)
        core.precision = "bf16"
        reasons = (
            "fused: expected an rmc with one block, got 2; backend reference: expected precision float32, got bf16"
        )
        with pytest.raises(ValueError, match=reasons):
            core.chosen_scan()
        monkeypatch.setattr(dispatch, "bf16_supported", lambda: False)
        core = RMC(INPUT)
        core.backend, core.precision = "fused", "bf16"
        with pytest.raises(ValueError, match="this processor has no instructions for precision bf16"):
            core.chosen_scan()
        core.precision = "half"
        with pytest.raises(ValueError, match="precision: expected one of float32, bf16, got 'half'"):
            core.chosen_scan()

    @pytest.mark.parametrize("name", CORES)
    def test_auto_takes_what_can_do_it(self, name):
        kind, options = CORES[name]
        core = kind(INPUT, **options)
        can = kind not in (RelationalRNN, Transformer) and options.get("num_blocks", 1) == 1
        expected = "none" if name == "none" else "fused" if can else "reference"
        assert core.chosen_backend() == expected
        if name != "none":
            assert core.double().chosen_backend() == "reference"

    def test_auto_takes_triton_on_a_gpu(self, monkeypatch):
        weights, memory = RMC(INPUT).weights(), RMC(INPUT).initial_memory
        on_gpu = [RMCState(SimpleNamespace(shape=memory.shape, dtype=memory.dtype, device=torch.device("cuda")))]

        def chosen(backend="auto", precision="float32"):
            return dispatch.choose("rmc", backend, precision, weights, *on_gpu).backend

        monkeypatch.setenv("CC", "cc")
        monkeypatch.setattr(dispatch, "find_spec", lambda name: None)
        assert chosen() == "reference"
        monkeypatch.undo()
        pytest.importorskip("triton")
        monkeypatch.setenv("CC", "cc")
        assert chosen() == "triton"
        with pytest.raises(ValueError, match="backend triton: expected precision float32, got bf16; backend reference"):
            chosen(precision="bf16")
        monkeypatch.delenv("CC")
        monkeypatch.setattr(dispatch, "which", lambda name: None)
        assert chosen() == "reference"
        with pytest.raises(ValueError, match="Triton needs a C compiler: install gcc or clang, or set CC"):
            chosen("triton")

    def test_what_cannot_be_done_is_refused_with_the_reason(self):
        core = RMC(INPUT, num_blocks=2)
        for backend, reason in {
            "fused": "backend fused: expected an rmc with one block, got 2",
            "triton": "backend triton: expected float32 on cuda, got float32 on cpu",
            "fast": "backend: expected one of auto, reference, fused, triton, got 'fast'",
        }.items():
            core.backend = backend
            with pytest.raises(ValueError, match=reason):
                core.step(torch.zeros(1, INPUT), torch.zeros(1, dtype=torch.bool), core.initial_state(1))
        relational = make_core(Config().updated({"core": "relational-rnn"}, "test").core, INPUT)
        relational.backend = "fused"
        with pytest.raises(
            ValueError, match="there is none for core relational-rnn, only for gru, lstm, mingru, rmc, rnn"
        ):
            relational.chosen_scan()

    def test_the_settings_name_the_backends_that_there_are(self):
        setting, measured = get_type_hints(RunConfig)["backend"], get_type_hints(BenchArguments)["backends"]
        assert dispatch.get_args(setting) == dispatch.get_args(dispatch.Backend)
        assert measured == tuple[setting, ...]
