"""The arithmetic of each core, against oracles, torch and finite differences."""

import numpy as np
import pytest
import torch

from helpers.cores import CORES, INPUT, LANES, RMC_OPTIONS, build, flags, random_inputs, random_state
from oracles import mingru as mingru_oracle
from oracles import rmc as oracle
from oracles import transformer as transformer_oracle
from rmc_agents.cores import LSTM, RMC, RNN, MinGRU, RelationalRNN, Transformer


def assert_unroll_is_the_oracles(core, unroll, options):
    inputs, should_reset = random_inputs(), flags((0, 1), (2, 0), (4, 0), (6, 2))
    state = random_state(core)
    outputs, after = core.unroll(inputs, should_reset, state)
    leaves = [leaf.numpy() for leaf in state]
    expected = unroll(arrays(core), options, inputs.numpy(), should_reset.numpy(), *leaves)
    for mine, oracles in zip((outputs, *after), expected, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), oracles, rtol=0, atol=1e-12)


class TestGradients:
    @pytest.mark.parametrize("name", [name for name in CORES if not name.startswith("rmc-")])
    def test_against_finite_differences(self, name):
        """Gradients of inputs, state and every parameter, over a sequence with resets. An rmc's: see TestRMC."""
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


ATTENTIONS = ["plain", "slot-embedding", "two-blocks", "three-blocks", "wide-keys", "narrow-keys"]
ATTENTIONS += ["one-slot", "one-head", "cut-identity"]
"""Gates, biases and the depth of the MLP come after the attention of a block."""


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
        assert_unroll_is_the_oracles(rmc, oracle.rmc_unroll, options)

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

    @pytest.mark.parametrize("options", ATTENTIONS, indirect=True)
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

    @pytest.mark.parametrize("options", ["plain", "cut-identity"], indirect=True)
    def test_initial_memory_is_the_identity(self, rmc, options):
        width = options["num_heads"] * options["head_size"]
        expected = oracle.rmc_initial_memory(options["mem_slots"], width)
        assert (rmc.initial_state(2).memory.numpy() == expected).all()

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
        assert_unroll_is_the_oracles(core, mingru_oracle.mingru_unroll, len(core.layers))

    def test_the_input_is_mapped_only_where_it_is_not_as_wide_as_the_state(self):
        skips = [layer.skip is None for layer in MinGRU(INPUT, hidden_size=6, num_layers=3).layers]
        assert skips == [False, True, True]
        assert MinGRU(6, hidden_size=6).layers[0].skip is None

    def test_forget_bias_is_what_a_state_keeps_at_first(self):
        core = MinGRU(INPUT, hidden_size=6, forget_bias=2.0)
        nothing, never = torch.zeros(1, INPUT), torch.zeros(1, dtype=torch.bool)
        _, after = core.step(nothing, never, type(core.initial_leaves())(torch.ones(1, 12)))
        torch.testing.assert_close(after.hidden[:, :6], torch.sigmoid(torch.tensor(2.0)).expand(1, 6))


@pytest.mark.parametrize("name", ["rmc-plain", "transformer"])
def test_attention_refuses_what_step_refuses(name):
    core = build(name)
    with pytest.raises(ValueError, match=r"should_reset: expected a tensor of torch\.bool"):
        core.attention_weights(random_inputs()[0], flags()[0].int(), core.initial_state(LANES))


class TestTransformer:
    @pytest.mark.parametrize("name", [name for name in CORES if name.startswith("transformer")])
    def test_outputs_and_state_are_the_oracles(self, name):
        core = build(name)
        assert_unroll_is_the_oracles(core, transformer_oracle.transformer_unroll, core.layers[0].num_heads)

    def test_all_steps_together_have_the_gradients_of_one_step_at_a_time(self):
        """Of inputs, state and every parameter, with strided gradients; twice as many steps as the memory holds."""
        core = build("transformer")
        inputs, should_reset = random_inputs(9).requires_grad_(), flags((0, 1), (2, 0), (7, 2), steps=9)
        state = type(s := random_state(core))(*(leaf.requires_grad_() for leaf in s))
        found = []
        for unroll in (core.scan, super(Transformer, core).scan):
            outputs, after = unroll(inputs, should_reset, state)
            weights = torch.linspace(-1, 1, 2 * outputs.numel(), dtype=torch.float64).reshape(-1, LANES, 9, 2)
            loss = (outputs * weights[..., 0].permute(2, 1, 0)).sum() + after.memory.sin().sum()
            found.append(torch.autograd.grad(loss, [inputs, *state, *core.parameters()]))
        torch.testing.assert_close(*found, rtol=1e-11, atol=1e-12)

    def test_attention_is_that_of_the_last_step(self):
        """Of a layer whose values are ones where it looks: they sum to 1, and what precedes the episode counts too."""
        core = build("transformer-long")
        state, inputs = random_state(core), random_inputs()[0]
        weights = core.attention_weights(inputs, flags((0, 1))[0], state)
        assert weights.requires_grad, "a loss may read them"
        assert weights.shape == (LANES, 1, 1, 1, 9 + 1)
        torch.testing.assert_close(weights.sum(-1), torch.ones(LANES, 1, 1, 1, dtype=torch.float64))
        layer = core.layers[0]
        for lane, memory in enumerate(state.memory[:, 0]):
            u = layer.norm(core.input(inputs[lane]))
            seen = torch.cat([memory if lane != 1 else torch.zeros_like(memory), u[None]])
            oracle = transformer_oracle.layer_attention(
                arrays(core), "layers.0", 1, u.detach().numpy(), [*seen.detach().numpy()]
            )
            np.testing.assert_allclose(weights[lane, 0, :, 0].detach().numpy(), oracle, rtol=0, atol=1e-12)

    def test_in_bfloat16_it_finds_a_step_by_its_distance(self):
        """Also one that bfloat16 cannot count, 261: queries are constant, the key of each distance is its r."""
        core = Transformer(INPUT, num_layers=1, num_heads=1, head_size=32, memory_length=512)
        layer, rates = core.layers[0], 10_000.0 ** -(torch.arange(0, 32, 2) / 32)
        with torch.no_grad():
            layer.query.weight.zero_()
            layer.query.bias.copy_(8 * 32**0.5 * torch.cat([(261 * rates).sin(), (261 * rates).cos()]))
            layer.key.zero_()
            layer.distance.copy_(torch.eye(32))
        core = core.bfloat16()
        weights = core.attention_weights(torch.randn(1, INPUT), torch.ones(1, dtype=torch.bool), core.initial_state(1))
        assert weights.flatten().argmax() == 512 - 261

    def test_a_new_one_is_a_linear_map_of_its_input(self):
        core = Transformer(INPUT).double()
        x = random_inputs()
        torch.testing.assert_close(core(x)[0], core.input(x))

    def test_an_initial_state_of_ones_own_is_where_episodes_begin(self):
        class Begun(Transformer):
            def initial_leaves(self):
                return type(super().initial_leaves())(*(leaf + 1.0 for leaf in super().initial_leaves()))

        core = Begun(INPUT, memory_length=2).double()
        with torch.no_grad():
            for layer in core.layers:
                layer.output.weight.normal_()
        x = random_inputs(1)
        fresh, _ = core(x)
        after_reset, _ = core(
            x,
            core.initial_state(LANES)._replace(memory=torch.zeros(LANES, 2, 2, 64).double()),
            should_reset=torch.ones(1, LANES, dtype=torch.bool),
        )
        assert torch.equal(fresh, after_reset)


class TestRelationalRNN:
    @pytest.mark.parametrize("name", ["relational-rnn", "relational-rnn-one-slot"])
    def test_outputs_and_state_are_the_oracles(self, name):
        core = build(name)
        assert_unroll_is_the_oracles(core, oracle.relational_rnn_unroll, core.num_heads)

    def test_initial_memory_is_small_fixed_noise(self):
        torch.manual_seed(1)
        first = RelationalRNN(INPUT, mem_slots=8, head_size=64)
        torch.manual_seed(2)
        second = RelationalRNN(INPUT, mem_slots=8, head_size=64)
        memory = first.initial_state(3).memory
        assert torch.equal(memory, second.initial_state(3).memory)
        assert memory.std().item() == pytest.approx(0.01, rel=0.05)
        assert "initial_memory" in first.state_dict()
