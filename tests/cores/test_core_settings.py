"""Cores by name and settings, and what they refuse in one line."""

import inspect

import pytest
import torch

from helpers.cores import INPUT, LANES, build, flags, random_inputs
from rmc_agents.config import CoreConfig
from rmc_agents.cores import GRU, LSTM, RMC, RNN, Feedforward, MinGRU, RelationalRNN, Transformer, make_core
from rmc_agents.types import map_leaves


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
        with pytest.raises(ValueError, match=r"inputs: expected \[T, B, 5\], none of them 0, got \[0, 3, 5\]"):
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

    @pytest.mark.parametrize("name", ["lstm", "transformer"])
    def test_state(self, name):
        recurrent = build(name)
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

    def test_device(self, each_kind):
        inputs, resets, state = random_inputs(), flags(), each_kind.initial_state(LANES)
        elsewhere = map_leaves(lambda leaf: leaf.to("meta"), state)
        expected = "expected a tensor on cpu, as the core, got one on meta"
        with pytest.raises(ValueError, match=f"inputs: {expected}"):
            each_kind.unroll(inputs.to("meta"), resets, state)
        with pytest.raises(ValueError, match=f"should_reset: {expected}"):
            each_kind.step(inputs[0], resets[0].to("meta"), state)
        if state != ():
            with pytest.raises(ValueError, match=f"state: {expected}"):
                each_kind.unroll(inputs, resets, elsewhere)

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
            (Transformer, "num_layers num_heads head_size memory_length"),
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
            ("transformer", Transformer, 2 * 32),
            ("none", Feedforward, INPUT),
        ],
    )
    def test_every_name(self, name, kind, size):
        core = make_core(CoreConfig(core=name), INPUT)
        assert type(core) is kind
        arguments = inspect.signature(kind).parameters.values()
        defaults = {each.name: each.default for each in arguments if each.name != "input_size"}
        assert defaults == {each: getattr(CoreConfig(), each) for each in defaults}
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
