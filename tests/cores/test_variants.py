"""The benchmark's cores between a GRU and an RMC are those two at their ends."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rmc_agents as rmc

INPUT = 10
SAME = {
    "embedding": "slot_embedding",
    "row": "input",
    "from_input": "input_gates",
    "from_memory": "memory_gates",
    "qkv": "blocks.0.qkv",
    "mlp.0": "mlp.0",
    "mlp.2": "mlp.1",
    "norms.0": "blocks.0.qkv_norm",
    "norms.1": "blocks.0.attention_norm",
    "norms.2": "blocks.0.mlp_norm",
}
"""Modules of the variant -> of `rmc.RMC`."""


@pytest.fixture
def variant(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(Path(__file__).parents[2])
    from benchmarks.learning.variants import Variant

    return Variant


def test_one_end_is_the_rmc_of_the_preset(variant: Any) -> None:
    core = variant(INPUT, slots=4, width=64, input="row", candidate="rmc", gate_bias=1.0)
    preset = rmc.RMC(INPUT, mem_slots=4, head_size=32, num_heads=2, gate_style="coupled", slot_embedding=True)
    for parameter in preset.parameters():
        nn.init.normal_(parameter, std=0.3)
    theirs = dict(preset.named_parameters())
    names = {name: name.rpartition(".") for name in core.state_dict()}
    core.load_state_dict(
        {name: theirs[f"{SAME[part]}.{leaf}" if part else SAME[leaf]] for name, (part, _, leaf) in names.items()}
    )
    x, starts = torch.randn(9, 3, INPUT), torch.rand(9, 3) < 0.3
    torch.testing.assert_close(core(x, should_reset=starts)[0], preset(x, should_reset=starts)[0], rtol=1e-4, atol=1e-5)


def test_the_other_end_is_a_gru(variant: Any) -> None:
    core, gru = variant(INPUT), nn.GRU(INPUT, 128)
    for mine, theirs, biases in (
        (core.from_input, gru.weight_ih_l0, gru.bias_ih_l0),
        (core.from_memory, gru.weight_hh_l0, gru.bias_hh_l0),
    ):
        nn.init.normal_(mine.bias)
        for values, copy in ((mine.weight, theirs), (mine.bias, biases)):
            update, candidate, reset = values.detach().chunk(3)
            copy.data.copy_(torch.cat([reset, update, candidate]))
    x = torch.randn(9, 3, INPUT)
    torch.testing.assert_close(core(x)[0], gru(x)[0], rtol=1e-4, atol=1e-5)


def test_with_the_gates_of_an_lstm_it_is_an_lstm(variant: Any) -> None:
    core, lstm = variant(INPUT, candidate="no-reset", gates="lstm"), nn.LSTM(INPUT, 128)
    for mine, theirs, biases in (
        (core.from_input, lstm.weight_ih_l0, lstm.bias_ih_l0),
        (core.from_memory, lstm.weight_hh_l0, lstm.bias_hh_l0),
    ):
        nn.init.normal_(mine.bias)
        for values, copy in ((mine.weight, theirs), (mine.bias, biases)):
            forget, write, show, candidate = values.detach().chunk(4)
            copy.data.copy_(torch.cat([write, forget, candidate, show]))
    x = torch.randn(9, 3, INPUT)
    torch.testing.assert_close(core(x)[0], lstm(x)[0], rtol=1e-4, atol=1e-5)


def test_the_candidate_with_attention_is_the_one_without_where_it_finds_zeros(variant: Any) -> None:
    x = torch.randn(5, 3, INPUT)
    plain, core = (variant(INPUT, slots=2, width=8, candidate=each, gates="lstm") for each in ("gru", "gru-attention"))
    core.load_state_dict(plain.state_dict(), strict=False)
    assert not torch.allclose(core(x)[0], plain(x)[0])
    for values in core.qkv.parameters():
        values.data[16:] = 0.0
    torch.testing.assert_close(core(x)[0], plain(x)[0])
