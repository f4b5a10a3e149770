"""The contract of every core, and the arithmetic of each."""

import numpy as np
import pytest
import torch

from helpers.cores import (
    CORES,
    INPUT,
    LANES,
    RMC_OPTIONS,
    STEPS,
    build,
    flags,
    random_inputs,
    random_state,
    same,
)
from oracles import mingru as mingru_oracle
from oracles import rmc as oracle
from rmc_agents.config import CoreConfig
from rmc_agents.cores import GRU, LSTM, RMC, RNN, Feedforward, MinGRU, RelationalRNN, make_core
from rmc_agents.types import map_leaves

RECURRENT = [name for name in CORES if name != "none"]


@pytest.fixture(params=CORES)
def core(request):
    return build(request.param)


@pytest.fixture(params=["rmc-plain", "lstm", "gru", "mingru", "rnn", "relational-rnn", "none"])
def each_kind(request):
    """One core of each class: for what does not depend on the settings."""
    return build(request.param)


@pytest.fixture(params=RECURRENT)
def recurrent(request):
    return build(request.param)


class TestContract:
    @pytest.mark.parametrize(("steps", "lanes"), [(STEPS, LANES), (1, 1)])
    def test_shapes(self, core, steps, lanes):
        state = core.initial_state(lanes)
        outputs, after = core.unroll(random_inputs(steps, lanes), flags(steps=steps, lanes=lanes), state)
        assert outputs.shape == (steps, lanes, core.output_size)
        assert type(after) is type(state)
        for leaf, leaf_after in zip(state, after, strict=True):
            assert leaf.shape == leaf_after.shape
            assert leaf.shape[0] == lanes
        output, _ = core.step(random_inputs(1, lanes)[0], flags(steps=1, lanes=lanes)[0], state)
        assert output.shape == (lanes, core.output_size)

    @pytest.mark.parametrize("lanes", [1, LANES])
    def test_unroll_is_steps(self, core, lanes):
        inputs, should_reset = random_inputs(lanes=lanes), flags((0, 0), (3, 0), (4, lanes - 1), lanes=lanes)
        state = random_state(core, lanes)
        outputs, after = core.unroll(inputs, should_reset, state)
        for t in range(STEPS):
            output, state = core.step(inputs[t], should_reset[t], state)
            torch.testing.assert_close(output, outputs[t], rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(tuple(state), tuple(after), rtol=1e-13, atol=1e-13)

    def test_step_is_an_unroll_of_one_to_the_bit(self, core):
        inputs, should_reset, state = random_inputs(1), flags((0, 1), steps=1), random_state(core)
        outputs, after = core.unroll(inputs, should_reset, state)
        output, state = core.step(inputs[0], should_reset[0], state)
        assert torch.equal(output, outputs[0])
        assert same(state, after)

    def test_two_unrolls_are_one(self, core):
        inputs, should_reset, state = random_inputs(), flags((4, 0), (5, 1)), random_state(core)
        outputs, after = core.unroll(inputs, should_reset, state)
        first, between = core.unroll(inputs[:4], should_reset[:4], state)
        second, end = core.unroll(inputs[4:], should_reset[4:], between)
        torch.testing.assert_close(torch.cat([first, second]), outputs, rtol=1e-13, atol=1e-13)
        torch.testing.assert_close(tuple(end), tuple(after), rtol=1e-13, atol=1e-13)

    def test_lanes_do_not_touch_each_other(self, core):
        inputs, state = random_inputs(), random_state(core)
        outputs, after = core.unroll(inputs, flags(), state)
        other_inputs, other = inputs.clone(), map_leaves(torch.clone, state)
        other_inputs[:, 0] = torch.nan
        for leaf in other:
            leaf[0] = torch.nan
        other_outputs, other_after = core.unroll(other_inputs, flags((2, 0), (5, 0)), other)
        assert torch.equal(outputs[:, 1:], other_outputs[:, 1:])
        assert same([leaf[1:] for leaf in after], [leaf[1:] for leaf in other_after])

    def test_nothing_is_changed_in_place(self, core):
        inputs, should_reset, state = random_inputs(), flags((0, 0), (2, 1)), random_state(core)
        copies = inputs.clone(), should_reset.clone(), map_leaves(torch.clone, state)
        fresh = core.initial_state(LANES)
        _, after = core.unroll(inputs, should_reset, state)
        assert same([inputs, should_reset, *state], [*copies[:2], *copies[2]])
        for leaf in [*after, *core.initial_state(LANES)]:
            leaf.detach().fill_(torch.nan)
        assert same(state, copies[2])
        assert same(core.initial_state(LANES), fresh)

    def test_no_state_stays_inside(self, core):
        inputs, state = random_inputs(), random_state(core)
        first = core.unroll(inputs, flags(), state)
        core.unroll(random_inputs(seed=5), flags((1, 1)), random_state(core))
        second = core.unroll(inputs, flags(), state)
        assert torch.equal(first[0], second[0])
        assert same(first[1], second[1])

    @pytest.mark.parametrize("name", CORES)
    def test_state_dict_gives_the_same_core_back(self, name):
        original, (kind, options) = build(name), CORES[name]
        copy = kind(INPUT, **options).double()
        copy.load_state_dict(original.state_dict())
        inputs, state = random_inputs(), random_state(original)
        assert torch.equal(original.unroll(inputs, flags(), state)[0], copy.unroll(inputs, flags(), state)[0])
        assert same(original.initial_state(2), copy.initial_state(2))

    def test_initial_state_is_the_same_for_all_lanes_and_of_the_parameters_dtype(self, core):
        state, single = core.initial_state(4), core.float().initial_state(1)
        for leaf, one in zip(state, single, strict=True):
            assert leaf.dtype == torch.float64
            assert one.dtype == torch.float32
            assert all(torch.equal(leaf[i], leaf[0]) for i in range(4))
            torch.testing.assert_close(leaf[:1], one.double())


class TestReset:
    def test_output_is_that_of_a_fresh_sequence_to_the_bit(self, recurrent):
        """The past before the reset differs in everything; the arithmetic has equal shapes, so equal bits."""
        inputs, should_reset = random_inputs(), flags((3, 0), (3, 1), (3, 2))
        other_inputs = inputs.clone()
        other_inputs[:3] = random_inputs(3, seed=2)
        outputs, after = recurrent.unroll(inputs, should_reset, recurrent.initial_state(LANES))
        others, other_after = recurrent.unroll(other_inputs, should_reset, random_state(recurrent))
        assert not torch.equal(outputs[2], others[2])
        assert torch.equal(outputs[3:], others[3:])
        assert same(after, other_after)

    def test_at_the_first_step_it_is_the_initial_state_to_the_bit(self, recurrent):
        inputs, everywhere = random_inputs(), flags((0, 0), (0, 1), (0, 2))
        fresh = recurrent.unroll(inputs, flags(), recurrent.initial_state(LANES))
        reset = recurrent.unroll(inputs, everywhere, random_state(recurrent))
        assert torch.equal(fresh[0], reset[0])
        assert same(fresh[1], reset[1])

    def test_stepping_on_is_starting_anew_to_the_bit(self, recurrent):
        inputs, state = random_inputs(), random_state(recurrent)
        fresh = recurrent.initial_state(LANES)
        for t in range(STEPS):
            output, state = recurrent.step(inputs[t], flags((0, 0), (0, 1), (0, 2))[0] & (t == 3), state)
            if t >= 3:
                expected, fresh = recurrent.step(inputs[t], flags()[0], fresh)
                assert torch.equal(output, expected)
                assert same(state, fresh)

    def test_rest_is_a_fresh_sequence(self, recurrent):
        inputs = random_inputs()
        outputs, _ = recurrent.unroll(inputs, flags((3, 0), (3, 1), (3, 2)), random_state(recurrent))
        fresh, _ = recurrent.unroll(inputs[3:], flags(steps=4), recurrent.initial_state(LANES))
        torch.testing.assert_close(outputs[3:], fresh, rtol=1e-13, atol=1e-13)

    def test_other_lanes_remember(self, recurrent):
        inputs, state = random_inputs(), random_state(recurrent)
        without, _ = recurrent.unroll(inputs, flags(), state)
        outputs, _ = recurrent.unroll(inputs, flags((3, 1)), state)
        assert torch.equal(without[:, [0, 2]], outputs[:, [0, 2]])
        assert torch.equal(without[:3, 1], outputs[:3, 1])
        assert not torch.equal(without[3, 1], outputs[3, 1])

    def test_gradient_stops_exactly(self, recurrent):
        inputs = random_inputs().requires_grad_()
        state = type(s := random_state(recurrent))(*(leaf.requires_grad_() for leaf in s))
        outputs, after = recurrent.unroll(inputs, flags((3, 0), (3, 1)), state)
        loss = outputs[3:].square().sum() + sum(leaf.square().sum() for leaf in after)
        d_inputs, *d_state = torch.autograd.grad(loss, [inputs, *state])
        assert not d_inputs[:3, :2].any()
        assert d_inputs[3:].all()
        assert d_inputs[:3, 2].any()
        assert all(not leaf[:2].any() for leaf in d_state)
        assert any(leaf[2].any() for leaf in d_state)

    def test_nan_in_the_old_state_is_gone(self, recurrent):
        state = random_state(recurrent)
        for leaf in state:
            leaf.fill_(torch.nan).requires_grad_()
        inputs, everywhere = random_inputs().requires_grad_(), flags((0, 0), (0, 1), (0, 2))
        outputs, after = recurrent.unroll(inputs, everywhere, state)
        fresh, _ = recurrent.unroll(inputs, flags(), recurrent.initial_state(LANES))
        assert torch.equal(outputs, fresh)
        loss = outputs.square().sum() + sum(leaf.square().sum() for leaf in after)
        gradients = torch.autograd.grad(loss, [inputs, *state, *recurrent.parameters()])
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert all(not gradient.any() for gradient in gradients[1 : 1 + len(state)])

    def test_initial_state_gets_its_gradient(self, recurrent):
        """As one that is learned would: both where it is passed in and where a reset puts it."""
        passed = type(s := recurrent.initial_state(LANES))(*(leaf.requires_grad_() for leaf in s))
        outputs, _ = recurrent.unroll(random_inputs(), flags(), passed)
        assert all(leaf.any() for leaf in torch.autograd.grad(outputs.square().sum(), list(passed)))

        learned = type(s)(*(leaf.detach().clone().requires_grad_() for leaf in recurrent.initial_leaves()))
        recurrent.initial_leaves = lambda: learned
        data = type(s)(*(leaf.detach() for leaf in passed))
        outputs, _ = recurrent.unroll(random_inputs(), flags((3, 0), (5, 2)), data)
        assert all(leaf.any() for leaf in torch.autograd.grad(outputs.square().sum(), list(learned)))


def test_coupled_gates_keep_the_memory_between_minus_one_and_one():
    core = RMC(INPUT, mem_slots=3, head_size=4, num_heads=2, gate_style="coupled", slot_embedding=True)
    inputs, never = 10 * torch.randn(200, LANES, INPUT), torch.zeros(200, LANES, dtype=torch.bool)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.mul_(10.0)
        outputs, _ = core.unroll(inputs, never, core.initial_state(LANES))
    assert 0.9 < outputs.abs().max() <= 1.0 + 1e-6


class TestRefusals:
    @pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
    def test_flags_that_are_not_bool(self, each_kind, dtype):
        with pytest.raises(ValueError, match=f"should_reset: expected a tensor of torch.bool, got {dtype}"):
            each_kind.unroll(random_inputs(), flags().to(dtype), each_kind.initial_state(LANES))
        with pytest.raises(ValueError, match=f"should_reset: expected a tensor of torch.bool, got {dtype}"):
            each_kind.step(random_inputs()[0], flags()[0].to(dtype), each_kind.initial_state(LANES))

    def test_flags_that_are_no_tensor(self, each_kind):
        with pytest.raises(ValueError, match=r"expected a tensor of torch\.bool, got NoneType"):
            each_kind.unroll(random_inputs(), None, each_kind.initial_state(LANES))

    def test_shape_of_inputs(self, each_kind):
        state = each_kind.initial_state(LANES)
        with pytest.raises(ValueError, match=r"inputs: expected \[T, B, 5\], got \[3, 5\]"):
            each_kind.unroll(random_inputs()[0], flags()[0], state)
        with pytest.raises(ValueError, match=r"inputs: expected \[B, 5\], got \[7, 3, 5\]"):
            each_kind.step(random_inputs(), flags(), state)
        with pytest.raises(ValueError, match=r"inputs: expected \[T, B, 5\], got \[7, 3, 4\]"):
            each_kind.unroll(random_inputs()[..., 1:], flags(), state)
        with pytest.raises(ValueError, match=r"inputs: expected \[T, B, 5\], got \[0, 3, 5\]"):
            each_kind.unroll(random_inputs()[:0], flags()[:0], state)

    def test_numbers_of_another_kind(self, each_kind):
        state = each_kind.initial_state(LANES)
        with pytest.raises(ValueError, match=r"inputs: expected floating-point numbers, got torch\.int64"):
            each_kind.unroll(random_inputs().long(), flags(), state)
        for other, got in ((lambda leaf: leaf.long(), "torch.int64"), (lambda leaf: None, "NoneType")):
            if state != ():
                with pytest.raises(ValueError, match=rf"state\..*: expected a tensor of torch.float64, got {got}"):
                    each_kind.unroll(random_inputs(), flags(), type(state)(*map(other, state)))

    def test_shape_of_flags(self, each_kind):
        state = each_kind.initial_state(LANES)
        with pytest.raises(ValueError, match=r"should_reset: expected \[7, 3\] \[T, B\].*got \[3, 7\]"):
            each_kind.unroll(random_inputs(), flags().t(), state)
        with pytest.raises(ValueError, match=r"should_reset: expected \[7, 3\] \[T, B\].*got \[7, 3, 1\]"):
            each_kind.unroll(random_inputs(), flags()[..., None], state)
        with pytest.raises(ValueError, match=r"should_reset: expected \[3\] \[B\].*got \[1\]"):
            each_kind.step(random_inputs()[0], flags()[0, :1], state)

    def test_state(self, recurrent):
        state = recurrent.initial_state(LANES)
        name, leaf = state._fields[-1], state[-1]
        expected = str(list(leaf.shape)).replace("[", r"\[").replace("]", r"\]")
        with pytest.raises(ValueError, match=rf"state.{name}: expected {expected}, got \[1, "):
            recurrent.unroll(random_inputs(), flags(), state._replace(**{name: leaf[:1]}))
        with pytest.raises(ValueError, match=rf"state.{name}: expected {expected}, got \[3, \d+, 1\]"):
            recurrent.unroll(random_inputs(), flags(), state._replace(**{name: leaf.flatten(1)[..., None]}))
        for wrong in (None, (), tuple(state)):
            got = "tuple" if wrong else str(wrong).replace("()", r"\(\)")
            with pytest.raises(ValueError, match=f"state: expected {type(state).__name__}.* got {got}"):
                recurrent.step(random_inputs()[0], flags()[0], wrong)

    def test_state_of_a_core_without(self):
        with pytest.raises(ValueError, match=r"state: expected \(\), .* got LSTMState"):
            build("none").unroll(random_inputs(), flags(), build("lstm").initial_state(LANES))

    def test_batch_size(self, each_kind):
        for batch_size in (0, -1, 2.0, True):
            with pytest.raises(ValueError, match="batch_size: expected a positive integer, got"):
                each_kind.initial_state(batch_size)

    @pytest.mark.parametrize(
        ("kind", "names"),
        [
            (RMC, "mem_slots head_size num_heads num_blocks key_size attention_mlp_layers"),
            (RelationalRNN, "hidden_size mem_slots num_heads head_size"),
            (LSTM, "hidden_size"),
            (GRU, "hidden_size"),
            (MinGRU, "hidden_size num_layers"),
            (RNN, "hidden_size"),
        ],
    )
    def test_sizes(self, kind, names):
        for name in names.split():
            for size in (0, -2, 1.5):
                with pytest.raises(ValueError, match=f"{name}: expected a positive integer, got {size}"):
                    kind(INPUT, **{name: size})
        with pytest.raises(ValueError, match="input_size: expected a positive integer, got 0"):
            kind(0)

    def test_gate_style(self):
        with pytest.raises(ValueError, match="gate_style: expected one of unit, coupled, memory, none, got 'units'"):
            RMC(INPUT, gate_style="units")


class TestGradients:
    @pytest.mark.parametrize("name", CORES)
    def test_against_finite_differences(self, name):
        """With regard to the inputs, the state and every parameter, over a sequence with resets."""
        core = build(name)
        inputs, should_reset = random_inputs(3, 2).requires_grad_(), flags((1, 0), steps=3, lanes=2)
        state = [leaf.requires_grad_() for leaf in random_state(core, 2)]
        names, parameters = zip(*core.named_parameters(), strict=True) if state else ((), ())

        def run(inputs, *leaves):
            values = {f"core.{n}": leaf for n, leaf in zip(names, leaves[len(state) :], strict=True)}
            arguments = inputs, should_reset, type(core.initial_leaves())(*leaves[: len(state)])
            outputs, after = torch.func.functional_call(_Unroll(core), values, arguments)
            return outputs, *after

        assert torch.autograd.gradcheck(run, (inputs, *state, *parameters), fast_mode=True)


class _Unroll(torch.nn.Module):
    def __init__(self, core):
        super().__init__()
        self.core = core

    def forward(self, *arguments):
        return self.core.unroll(*arguments)


def arrays(core):
    weights = {name: value.numpy() for name, value in core.state_dict().items()}
    return {name: value.astype(np.float64) for name, value in weights.items()}


class TestRMC:
    @pytest.fixture(params=RMC_OPTIONS)
    def options(self, request):
        options = RMC_OPTIONS[request.param]
        defaults = {"num_blocks": 1, "key_size": options["head_size"], "gate_style": "unit"}
        return defaults | {"attention_mlp_layers": 2, "forget_bias": 1.0, "input_bias": 0.0} | options

    @pytest.fixture
    def rmc(self, request, options):
        return build(f"rmc-{request.node.callspec.params['options']}")

    def test_outputs_and_state_are_the_oracles(self, rmc, options):
        inputs, should_reset, state = (
            random_inputs(),
            flags((0, 1), (2, 0), (4, 0), (6, 2)),
            random_state(rmc),
        )
        outputs, after = rmc.unroll(inputs, should_reset, state)
        arguments = inputs.numpy(), should_reset.numpy(), state.memory.numpy()
        expected, expected_memory = oracle.rmc_unroll(arrays(rmc), options, *arguments)
        np.testing.assert_allclose(outputs.detach().numpy(), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(after.memory.detach().numpy(), expected_memory, rtol=0, atol=1e-12)

    def test_gradients_are_the_oracles_differences(self, rmc, options):
        inputs, should_reset = random_inputs(3, 2), flags((1, 1), steps=3, lanes=2)
        state = random_state(rmc, 2)
        tensors = {"inputs": inputs, "memory": state.memory} | dict(rmc.named_parameters())
        weigh = torch.randn(3, 2, rmc.output_size, dtype=torch.float64)
        for tensor in (inputs, state.memory):
            tensor.requires_grad_()
        outputs, _ = rmc.unroll(inputs, should_reset, state)
        gradients = torch.autograd.grad((outputs * weigh).sum(), list(tensors.values()))
        generator, direction, slope = np.random.default_rng(0), {}, 0.0
        for (name, tensor), gradient in zip(tensors.items(), gradients, strict=True):
            direction[name] = generator.standard_normal(tensor.shape)
            slope += (gradient.numpy() * direction[name]).sum()

        def oracle_loss(epsilon):
            moved = {n: v.detach().numpy() + epsilon * direction[n] for n, v in tensors.items()}
            sequence = moved["inputs"], should_reset.numpy(), moved["memory"]
            return (oracle.rmc_unroll(moved, options, *sequence)[0] * weigh.numpy()).sum()

        difference = (oracle_loss(1e-6) - oracle_loss(-1e-6)) / 2e-6
        assert slope == pytest.approx(difference, rel=1e-5, abs=1e-6)

    def test_attention(self, rmc, options):
        inputs, should_reset, state = random_inputs()[0], flags((0, 1))[0], random_state(rmc)
        weights = rmc.attention_weights(inputs, should_reset, state)
        slots = options["mem_slots"]
        assert weights.shape == (LANES, options["num_blocks"], options["num_heads"], slots, slots + 1)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
        for lane in range(LANES):
            memory = rmc.initial_memory[0] if should_reset[lane] else state.memory[lane]
            _, expected = oracle.rmc_step(arrays(rmc), options, inputs[lane].numpy(), memory.numpy())
            np.testing.assert_allclose(weights[lane].detach().numpy(), expected, rtol=0, atol=1e-13)

    def test_attention_refuses_what_step_refuses(self, rmc):
        with pytest.raises(ValueError, match=r"should_reset: expected a tensor of torch\.bool"):
            rmc.attention_weights(random_inputs()[0], flags()[0].int(), rmc.initial_state(LANES))

    def test_initial_memory_is_the_identity(self, rmc, options):
        width = options["num_heads"] * options["head_size"]
        expected = oracle.rmc_initial_memory(options["mem_slots"], width)
        assert (rmc.initial_state(2).memory.numpy() == expected).all()

    def test_output_is_the_state(self, rmc):
        outputs, after = rmc.unroll(random_inputs(), flags(), random_state(rmc))
        assert torch.equal(outputs[-1], after.memory.flatten(1))

    def test_weights_start_as_specified(self):
        torch.manual_seed(0)
        rmc = RMC(300, num_blocks=2)
        for name, layer in rmc.named_modules():
            if isinstance(layer, torch.nn.Linear):
                std = layer.in_features**-0.5
                assert layer.weight.abs().max() <= 2 * std, name
                assert layer.weight.std().item() == pytest.approx(0.88 * std, rel=0.03), name
                assert not layer.bias.any(), name
            if isinstance(layer, torch.nn.LayerNorm):
                assert (layer.weight == 1).all(), name
                assert not layer.bias.any(), name


class TestAgainstTorch:
    @pytest.mark.parametrize(
        ("name", "module"), [("lstm", torch.nn.LSTM), ("gru", torch.nn.GRU), ("rnn", torch.nn.RNN)]
    )
    def test_outputs_and_gradients(self, name, module):
        core = build(name)
        peer = module(INPUT, core.output_size).double()
        with torch.no_grad():
            peer.weight_ih_l0.copy_(core.weight_ih)
            peer.weight_hh_l0.copy_(core.weight_hh)
            if name == "gru":
                peer.bias_ih_l0.copy_(core.bias_ih)
                peer.bias_hh_l0.copy_(core.bias_hh)
            else:
                peer.bias_ih_l0.copy_(0.25 * core.bias)
                peer.bias_hh_l0.copy_(0.75 * core.bias)
        inputs = random_inputs().requires_grad_()
        state = [leaf.requires_grad_() for leaf in random_state(core)]
        outputs, after = core.unroll(inputs, flags(), type(core.initial_leaves())(*state))
        peer_state = [leaf[None] for leaf in state]
        expected, peer_after = peer(inputs, tuple(peer_state) if name == "lstm" else peer_state[0])
        torch.testing.assert_close(outputs, expected)
        torch.testing.assert_close(torch.stack(list(after)), torch.stack(list(peer_after)).view(-1, LANES, 6))
        weigh = torch.randn_like(outputs)
        own = [core.weight_ih, core.weight_hh, core.bias_ih if name == "gru" else core.bias]
        theirs = [peer.weight_ih_l0, peer.weight_hh_l0, peer.bias_ih_l0]
        torch.testing.assert_close(
            torch.autograd.grad((outputs * weigh).sum(), [inputs, *state, *own]),
            torch.autograd.grad((expected * weigh).sum(), [inputs, *state, *theirs]),
        )

    def test_lstm_forget_bias_starts_at_one(self):
        bias = LSTM(INPUT, hidden_size=6).bias
        assert bias.tolist() == [0.0] * 6 + [1.0] * 6 + [0.0] * 12

    def test_rnn_starts_orthogonal(self):
        weight = RNN(INPUT, hidden_size=6).weight_hh
        torch.testing.assert_close(weight @ weight.t(), torch.eye(6))


class TestMinGRU:
    @pytest.mark.parametrize("name", [name for name in CORES if name.startswith("mingru")])
    def test_outputs_and_state_are_the_oracles(self, name):
        core = build(name)
        inputs, should_reset = random_inputs(), flags((0, 1), (2, 0), (4, 0), (6, 2))
        state = random_state(core)
        outputs, after = core.unroll(inputs, should_reset, state)
        arguments = inputs.numpy(), should_reset.numpy(), state.hidden.numpy()
        expected, hidden = mingru_oracle.mingru_unroll(arrays(core), len(core.layers), *arguments)
        np.testing.assert_allclose(outputs.detach().numpy(), expected, rtol=0, atol=1e-12)
        np.testing.assert_allclose(after.hidden.detach().numpy(), hidden, rtol=0, atol=1e-12)

    def test_the_input_is_mapped_only_where_it_is_not_as_wide_as_the_state(self):
        skips = [layer.skip is None for layer in MinGRU(INPUT, hidden_size=6, num_layers=3).layers]
        assert skips == [False, True, True]
        assert MinGRU(6, hidden_size=6).layers[0].skip is None

    def test_forget_bias_is_what_a_state_keeps_at_first(self):
        core = MinGRU(INPUT, hidden_size=6, forget_bias=2.0)
        nothing, never = torch.zeros(1, INPUT), torch.zeros(1, dtype=torch.bool)
        _, after = core.step(nothing, never, type(core.initial_leaves())(torch.ones(1, 12)))
        torch.testing.assert_close(after.hidden[:, :6], torch.sigmoid(torch.tensor(2.0)).expand(1, 6))


class TestRelationalRNN:
    @pytest.mark.parametrize("name", ["relational-rnn", "relational-rnn-one-slot"])
    def test_outputs_and_state_are_the_oracles(self, name):
        core = build(name)
        inputs, should_reset = random_inputs(), flags((0, 1), (2, 0), (4, 0), (6, 2))
        state = random_state(core)
        outputs, after = core.unroll(inputs, should_reset, state)
        arguments = inputs.numpy(), should_reset.numpy(), [leaf.numpy() for leaf in state]
        expected, leaves = oracle.relational_rnn_unroll(arrays(core), core.num_heads, *arguments)
        np.testing.assert_allclose(outputs.detach().numpy(), expected, rtol=0, atol=1e-12)
        for leaf, expected_leaf in zip(after, leaves, strict=True):
            np.testing.assert_allclose(leaf.detach().numpy(), expected_leaf, rtol=0, atol=1e-12)

    def test_initial_memory_is_small_fixed_noise(self):
        torch.manual_seed(1)
        first = RelationalRNN(INPUT, mem_slots=8, head_size=64)
        torch.manual_seed(2)
        second = RelationalRNN(INPUT, mem_slots=8, head_size=64)
        memory = first.initial_state(3).memory
        assert torch.equal(memory, second.initial_state(3).memory)
        assert memory.std().item() == pytest.approx(0.01, rel=0.05)
        assert "initial_memory" in first.state_dict()


class TestMakeCore:
    @pytest.mark.parametrize(
        ("name", "kind", "size"),
        [
            ("rmc", RMC, 4 * 2 * 32),
            ("lstm", LSTM, 256),
            ("gru", GRU, 256),
            ("mingru", MinGRU, 256),
            ("rnn", RNN, 256),
            ("relational-rnn", RelationalRNN, 256),
            ("none", Feedforward, INPUT),
        ],
    )
    def test_every_name(self, name, kind, size):
        core = make_core(CoreConfig(core=name), INPUT)
        assert type(core) is kind
        assert (core.input_size, core.output_size) == (INPUT, size)

    def test_every_option_arrives(self):
        sizes = {"mem_slots": 3, "num_heads": 2, "head_size": 5, "key_size": 7, "num_blocks": 2}
        rmc = make_core(
            CoreConfig(**sizes, attention_mlp_layers=3, gate_style="memory", forget_bias=0.5, input_bias=-1.0),
            INPUT,
        )
        assert rmc.output_size == 3 * 10
        assert [block.qkv.out_features for block in rmc.blocks] == [2 * (7 + 7 + 5)] * 2
        assert (len(rmc.mlp), rmc.memory_gates.out_features) == (3, 2)
        assert (rmc.forget_bias, rmc.input_bias, rmc.key_size) == (0.5, -1.0, 7)
        assert rmc.slot_embedding is None
        assert make_core(CoreConfig(**sizes, slot_embedding=True), INPUT).slot_embedding.shape == (3, 10)
        relational = make_core(CoreConfig(core="relational-rnn", hidden_size=9, mem_slots=3, forget_bias=2.0), INPUT)
        assert relational.initial_state(1).memory.shape == (1, 3, 2 * 32)
        assert relational.lstm.bias.sum() == 9 * 2.0
        assert make_core(CoreConfig(core="lstm", hidden_size=9, forget_bias=2.0), INPUT).bias.sum() == 9 * 2.0
        assert len(make_core(CoreConfig(core="mingru", num_layers=3), INPUT).layers) == 3

    def test_unknown_name(self):
        with pytest.raises(ValueError, match="there is no core 'lsmt'; did you mean 'lstm'"):
            make_core(CoreConfig(core="lsmt"), INPUT)
        with pytest.raises(ValueError, match="there is no core 'x'; expected one of rmc, lstm, gru, mingru, "):
            make_core(CoreConfig(core="x"), INPUT)
