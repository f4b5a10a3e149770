"""Custom cores by name."""

from typing import Any

import pytest
import torch
from torch import nn

from helpers.own_cores import Decay, Module, Odd
from rmc_agents.agent import ActorCritic
from rmc_agents.config import Config, CoreConfig
from rmc_agents.cores import LSTM, make_core, register_core, settings_unused
from rmc_agents.cores.adapter import METHODS
from rmc_agents.registry import NotRegistered
from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import AgentOutput, TimeStep

LANES, SIZE = 3, 4


def test_a_name_becomes_a_core() -> None:
    register_core("odd", Odd)
    core = make_core(CoreConfig(core="odd", core_args={"width": 7}), SIZE)
    assert (type(core), core.input_size, core.output_size) == (Odd, SIZE, 7)
    odd, lstm, rmc = (settings_unused(Config().updated({"core": name}, "test")) for name in ("odd", "lstm", "rmc"))
    assert "core_args" not in odd
    assert {"core_args", "mem_slots"} & lstm == {"core_args", "mem_slots"}
    assert "mem_slots" not in rmc
    register_core("odd", Module)
    assert make_core(CoreConfig(core="odd"), SIZE).output_size == 5


def test_it_is_an_agents() -> None:
    register_core("test_own_cores:Odd", Odd)
    spec = SpaceSpec((SIZE,), "float32", 1.0, 3)
    agent = ActorCritic(spec, "test_own_cores:Odd", encoder_sizes=(8,))
    never, zeros = torch.zeros(LANES, dtype=torch.bool), torch.zeros(LANES)
    steps = TimeStep(torch.randn(LANES, SIZE), ~never, zeros.long(), zeros, never, never)
    output, state = agent.step(steps, agent.initial_state(LANES))
    assert isinstance(output, AgentOutput)
    assert agent.core_gain == 1.0
    attention = agent.attention(steps, state)
    assert attention is not None
    assert attention.shape == (LANES, 1, 1, 2, 3)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("decai", "core: there is no core 'decai'; did you mean 'decay'?"),
        ("x", "core: there is no core 'x'; expected one of rmc, lstm, .*, decay. Register your own first"),
        (
            "my_cores:Decay",
            r"add --import my_cores:Decay; .*import my_cores and call rmc.register_core\(.*, my_cores.Decay\)",
        ),
    ],
)
def test_names_that_are_not_registered(name: str, message: str) -> None:
    register_core("decay", Decay)
    with pytest.raises(NotRegistered, match=message):
        make_core(CoreConfig(core=name), SIZE)


def test_arguments_that_it_does_not_take() -> None:
    register_core("odd", Odd)
    with pytest.raises(ValueError, match=r"core_args: expected none for core lstm, .* got hidden"):
        make_core(CoreConfig(core="lstm", core_args={"hidden": 2}), SIZE)
    register_core("empty", type("Empty", (nn.Module,), dict.fromkeys(METHODS, print)))
    with pytest.raises(ValueError, match="core_args: empty: expected an __init__ of its own"):
        make_core(CoreConfig(core="empty"), SIZE)
    with pytest.raises(
        ValueError, match="core_args: odd: got an unexpected keyword argument 'depth'; its arguments: width"
    ):
        make_core(CoreConfig(core="odd", core_args={"depth": 2}), SIZE)


@pytest.mark.parametrize("build", [nn.LSTM, nn.GRUCell])
def test_a_class_that_is_no_core(build: type[nn.Module]) -> None:
    register_core("theirs", build)
    with pytest.raises(ValueError, match=r"core: expected a name such as .*; theirs has no initial_state"):
        make_core(CoreConfig(core="theirs"), SIZE)


@pytest.mark.parametrize(
    ("name", "build", "message"),
    [
        ("lstm", Decay, "'lstm' is built-in"),
        ("", Decay, "expected a name, got ''"),
        ("mine", 3, "expected a class or a function, got int"),
        ("mine", LSTM(3), "expected a class or a function, got LSTM"),
    ],
)
def test_what_cannot_be_registered(name: str, build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=f"register_core: {message}"):
        register_core(name, build)
