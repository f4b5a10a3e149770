"""Exported programs: every core and encoder in both formats does what the agent does; what cannot be exported."""

import json
import logging
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium.spaces import Box, Dict
from torch import Tensor, nn

from helpers import zoo
from helpers.own_cores import Counter, Decay, Module
from helpers.runs import refused
from rmc_agents import __version__, plugins
from rmc_agents.agent import ActorCritic
from rmc_agents.config import Config
from rmc_agents.cores import LSTM, Core, MinGRU
from rmc_agents.distributions import NotFinite
from rmc_agents.evaluate import export
from rmc_agents.evaluate.episodes import PlaySettings, env_spec, play
from rmc_agents.evaluate.exported import Compared, Program, _Step, _zeros, make_program
from rmc_agents.kernels.weights import HiddenState
from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import State, TimeStep, map_leaves

CPU = torch.device("cpu")
DEPLOY = Path(__file__).parent.parent.parent / "docs" / "examples" / "deploy.py"
SIZES = {"hidden_size": 7, "mem_slots": 3, "num_heads": 2, "head_size": 4, "encoder_sizes": [9]}
# What torch captures is the same in both formats; conversion to ONNX takes seconds. That of an rmc, an lstm and a
# mingru is tested below, together with deployment, convolutions and nested observations; the other cores have no
# operators that these lack.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {  # format, environment, settings
    "rmc, categories": ("torch", "memory-s13", {"core": "rmc", "gate_style": "coupled", "slot_embedding": True}),
    "mingru, vectors, predicted rewards": ("torch", "CartPole-v1", {"core": "mingru", "predict_rewards": True}),
    "lstm, pictures": ("torch", "minipacman", {"core": "lstm"}),
    "transformer, tokens": ("onnx", "minipacman-map", {"core": "transformer", "num_layers": 1, "memory_length": 6}),
    "relational-rnn, nested": ("torch", "Zoo-Tuple-v0", {"core": "relational-rnn"}),
    "gru, actions of several kinds": ("torch", "Zoo-TupleActions-v0", {"core": "gru", "head_sizes": [6, 5]}),
    "none, action masks": ("torch", "Zoo-MaskMany-v0", {"core": "none"}),
}


def make_agent(env: str, **settings: Any) -> ActorCritic:
    """An untrained agent with a policy that depends on its memory."""
    torch.manual_seed(0)
    config = Config().updated(SIZES | settings, "test")
    agent = ActorCritic.from_config(env_spec(env), config.core, config.agent).eval()
    with torch.no_grad():
        agent.policy.weight.mul_(100)
    return agent


def compare(agent: ActorCritic, format: str, env: str, max_steps: int = 20) -> Compared:
    """The outcome of playing with other numbers of lanes than were captured; raises where the program differs."""
    compared = Compared(agent, make_program(agent, format, {}))
    for lanes in (1, 5):
        play(compared, env, lanes, PlaySettings(3, CPU, max_steps=max_steps))
    return compared


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_core_and_encoder_does_what_the_agent_does(case: str) -> None:
    format, env, settings = CASES[case]
    compared = compare(make_agent(env, **settings), format, env)
    assert 0 <= compared.largest < 1e-5


def test_another_policy_is_noticed_where_an_action_is_forbidden() -> None:
    agent = make_agent("minipacman", core="none")
    seen = _zeros(agent.spec, 1)
    never, mask = torch.zeros(1, dtype=torch.bool), torch.tensor([[True, True, True, True, False]])
    steps = TimeStep(*seen, never, never, mask)
    logits, value = agent.step(steps, ())[0]
    Compared(agent, SimpleNamespace(run=lambda *_: (logits, value))).step(steps, ((), ()))  # type: ignore[arg-type]
    wrong = Compared(agent, SimpleNamespace(run=lambda *_: (10 * logits, value)))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected the same actions and probabilities"):
        wrong.step(steps, ((), ()))


class Trace(Core):
    """A custom core that can be exported, around a mingru; it also remembers where inputs have been positive."""

    def __init__(self, input_size: int) -> None:
        super().__init__(input_size, output_size=7)
        self.inner = MinGRU(input_size, hidden_size=7)

    def initial_leaves(self) -> State:
        return *self.inner.initial_leaves(), torch.zeros(1, self.input_size, dtype=torch.bool)

    def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        seen = state[1] | (x > 0)
        output, after = self.inner.cell(x + seen, HiddenState(state[0]))
        return output, (*after, seen)


@pytest.mark.slow
def test_names_metadata_and_numbers_of_onnx() -> None:
    """Of a custom core, with convolutions in nested observations."""
    torch.manual_seed(0)
    observations, actions = zoo.SPACES["Nested"]
    spec = SpaceSpec.from_spaces(Dict(observations.spaces | {"look": Box(0, 255, (40, 40, 3), np.uint8)}), actions)
    agent = ActorCritic(spec, Trace, encoder_sizes=[6]).eval()
    program = make_program(agent, "onnx", {"env": "Nested-v0"})

    obs, is_first, prev_action, _ = _zeros(spec, 2)
    obs |= {"a/b/0": torch.tensor([[1, 2], [2, 0]]), "count": torch.tensor([[9.0, 0.0], [3.0, 5.0]])}
    obs |= {"a/b/1": torch.tensor([[[1, 0], [0, 1]], [[1, 1], [1, 0]]], dtype=torch.int8)}
    obs["look"] = torch.randint(0, 256, (2, 40, 40, 3), dtype=torch.uint8)
    seen, never = (obs, torch.tensor([False, True]), prev_action + 1, torch.randn(2)), is_first
    state = torch.randn(2, 14), torch.tensor([[True], [False]]).expand(2, agent.core.input_size)
    output, after = agent.step(TimeStep(*seen, never, never), state)
    torch.testing.assert_close(program.run(seen, state), (*output, *after), atol=1e-6, rtol=1e-5)

    session = onnxruntime.InferenceSession(program.data)
    inputs = {each.name: (each.type, each.shape[1:]) for each in session.get_inputs()}
    assert inputs == {
        "obs_a/b/0": ("tensor(int64)", [2]),
        "obs_a/b/1": ("tensor(int8)", [2, 2]),
        "obs_count": ("tensor(float)", [2]),
        "obs_look": ("tensor(uint8)", [40, 40, 3]),
        "is_first": ("tensor(bool)", []),
        "prev_action": ("tensor(int64)", []),
        "prev_reward": ("tensor(float)", []),
        "state_0": ("tensor(float)", [14]),
        "state_1": ("tensor(bool)", [agent.core.input_size]),
    }
    outputs = [each.name for each in session.get_outputs()]
    assert outputs == ["policy_logits", "value", "next_state_0", "next_state_1"]
    assert all(isinstance(each.shape[0], str) for each in (*session.get_inputs(), *session.get_outputs()))
    assert session.get_modelmeta().custom_metadata_map["env"] == "Nested-v0"


def test_states_have_the_names_of_their_leaves() -> None:
    assert _Step(make_agent("recall", core="lstm")).names == ("hidden", "cell")
    assert _Step(make_agent("recall", core="rmc")).names == ("memory",)


@pytest.mark.slow
def test_a_program_of_other_weights_is_refused() -> None:
    agent = make_agent("recall", core="rnn")
    compared = Compared(agent, make_program(agent, "torch", {}))
    play(compared, "recall", 2, PlaySettings(3, CPU))
    assert isinstance(agent.core.weight_hh, nn.Parameter)
    with torch.no_grad():
        agent.core.weight_hh.add_(0.1)
    with pytest.raises(ValueError, match=r"expected the same actions and probabilities within 1.0e-05, got a diff"):
        play(compared, "recall", 2, PlaySettings(3, CPU))


def test_an_agent_that_has_diverged_is_the_agents_fault() -> None:
    agent = make_agent("recall", core="rnn")
    with torch.no_grad():
        agent.policy.weight.fill_(torch.nan)
    with pytest.raises(NotFinite, match="the policy's outputs are not finite"):
        play(Compared(agent, make_program(agent, "torch", {})), "recall", 2, PlaySettings(3, CPU))


def differing(agent: ActorCritic, logits: Any = 0.0, state: complex = 0.0) -> Compared:
    """An agent beside a program that differs from it by so much."""

    def run(inputs: tuple[Any, ...], before: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        never = torch.zeros_like(inputs[1])
        named = map_leaves(lambda _, leaf: leaf, agent.initial_state(1), before)
        output, after = agent.step(TimeStep(*inputs, never, never), named)
        return output.policy_logits + logits, output.value, *(leaf + state for leaf in after)

    return Compared(agent, Program(b"", run))


def test_probabilities_of_large_logits_may_differ_more() -> None:
    """By a millionth of the largest logit, since that is how much float32 rounds."""
    agent = make_agent("recall", core="none")
    shifted = differing(agent, 1e-4 * torch.eye(4)[0])  # probabilities of a quarter differ by 1.9e-5
    for largest, is_refused in ((1.0, True), (15.0, True), (30.0, False)):
        with torch.no_grad():
            agent.policy.weight.zero_()
            agent.policy.bias.fill_(largest)
        with pytest.raises(ValueError, match="probabilities within") if is_refused else nullcontext():
            play(shifted, "recall", 2, PlaySettings(3, CPU, max_steps=1))


class Turning(Core):
    """Its state is complex."""

    def initial_leaves(self) -> State:
        return (torch.ones(1, self.output_size, dtype=torch.complex64),)

    def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return x, (1j * state[0],)


def test_a_program_with_another_next_state_is_refused_at_its_first_step() -> None:
    turning = ActorCritic(env_spec("recall"), Turning).eval()
    for agent, difference in ((make_agent("recall", core="rnn"), 1e-4), (turning, 1e-4), (turning, 1e-4j)):
        drifting = differing(agent, state=difference)
        with pytest.raises(
            ValueError, match=r"expected a state v within 1e-05 \(1 \+ \|v\|\), got a difference of .*e-0"
        ):
            play(drifting, "recall", 2, PlaySettings(3, CPU, max_steps=1))


class Undecided(Core):
    """Its step depends on a tensor's values, which no captured program can."""

    def initial_leaves(self) -> State:
        return (torch.zeros(1, self.output_size),)

    def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return (x, state) if x.isfinite().all() else (-x, state)


def test_a_custom_core_that_cannot_be_captured_is_refused(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.root.manager, "disable", logging.DEBUG)
    spec = env_spec("recall")
    with pytest.raises(ValueError, match="core Undecided with encoder Encoder cannot be exported by torch"):
        make_program(ActorCritic(spec, Undecided, encoder_sizes=[6]).eval(), "torch", {})
    assert capfd.readouterr() == ("", "")  # torch prints what it had captured
    assert logging.root.manager.disable == logging.DEBUG, "the user's own setting is kept"


class Bessel(Core):
    """A core with a function that ONNX lacks."""

    def initial_leaves(self) -> State:
        return (torch.zeros(1, self.output_size),)

    def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        trace = x + torch.special.bessel_j0(state[0])
        return trace, (trace,)


def test_a_custom_core_that_onnx_lacks_is_refused() -> None:
    agent = ActorCritic(env_spec("recall"), Bessel, encoder_sizes=[6]).eval()
    with pytest.raises(ValueError, match=r"Encoder cannot be written as onnx: No ONNX function found for .*bessel_j0"):
        make_program(agent, "onnx", {})


@pytest.mark.slow
def test_the_program_of_an_agent_in_training_opens_without_this_package(tmp_path: Path) -> None:
    agent = ActorCritic(env_spec("recall"), LSTM(6, hidden_size=5), encoder_sizes=[6])
    path = tmp_path / "program.pt2"
    assert export.export(agent, path, 2, env="recall").difference == pytest.approx(0, abs=1e-5)
    assert agent.training
    about = {"about.json": ""}
    step = torch.export.load(path, extra_files=about).module()
    state = {name: torch.zeros(1, 5) for name in ("hidden", "cell")}
    fields = {"obs": torch.zeros(1, 4), "prev_action": torch.zeros(1, dtype=torch.int64), "prev_reward": torch.zeros(1)}
    output = step(is_first=torch.tensor([True]), state=state, **fields)
    assert output.keys() == {"policy_logits", "value", "state"}
    assert output["state"].keys() == state.keys()
    assert json.loads(about["about.json"]) == {"env": "recall", "core": "lstm", "rmc_agents": __version__}


def test_bad_flags_are_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    cases = {
        "a.onnx --format safetensors": "expected a file name that ends in .safetensors for --format safetensors",
        "a.safetensors --format torch": "expected a file name that ends in .pt2 for --format torch",
    }
    for flags, message in cases.items():
        assert message in refused(capsys, export, "recall-rmc", *flags.split())
    monkeypatch.setattr(plugins, "is_installed", lambda name: name != "onnxscript")
    line = refused(capsys, export, "recall-rmc", "--format", "onnx")
    assert ".onnx needs onnx, onnxscript, onnxruntime: pip install 'rmc-agents[onnx]'" in line
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_deployment_without_torch_and_this_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the documentation's example, of a policy after which the command names the file."""
    monkeypatch.chdir(tmp_path)
    assert export.main(["recall-rmc", "--format", "onnx", "--episodes", "5"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("recall-rmc.onnx (")
    assert "mean return 1.00" in output
    assert "its probabilities differ by at most " in output
    program = f"""import runpy, sys
sys.modules.update(torch=None, rmc_agents=None)  # not to be imported
runpy.run_path({str(DEPLOY)!r}, run_name="__main__")"""
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "3 of 3 cues remembered\n"
    assert [path.name for path in tmp_path.iterdir()] == ["recall-rmc.onnx"]


@pytest.mark.slow
def test_a_state_of_whole_numbers_with_an_empty_leaf_is_exported() -> None:
    class Empty(Counter):
        def initial_leaves(self) -> tuple[Tensor, ...]:
            return *super().initial_leaves(), torch.zeros(1, 0)

        def cell(self, x: Tensor, state: State) -> tuple[Tensor, State]:
            output, after = super().cell(x, state[:-1])
            return output, (*after, state[-1])

    agent = ActorCritic(env_spec("recall"), Empty, encoder_sizes=[4]).eval()
    assert 0 <= compare(agent, "torch", "recall").largest < 1e-5


@pytest.mark.slow
def test_a_core_that_resets_by_multiplication_is_exported() -> None:
    agent = ActorCritic(env_spec("recall"), Module, encoder_sizes=[6]).eval()
    assert compare(agent, "torch", "recall").largest < 1e-5


@pytest.mark.slow
def test_an_initial_state_that_is_expanded_is_exported() -> None:
    class Learned(Module):
        def __init__(self, input_size: int) -> None:
            super().__init__(input_size)
            self.start = nn.Parameter(torch.randn(1, 5))

        def initial_state(self, batch_size: int) -> State:
            return (self.start.expand(batch_size, -1),) * 2

        def step(self, x: Tensor, should_reset: Tensor, state: State) -> tuple[Tensor, State]:
            state = tuple(torch.where(should_reset[:, None], self.start, leaf) for leaf in state)
            return super().step(x, torch.zeros_like(should_reset), state)

    agent = ActorCritic(env_spec("recall"), Learned, encoder_sizes=[6]).eval()
    assert compare(agent, "torch", "recall").largest < 1e-5


@pytest.mark.slow
def test_a_subclass_of_a_built_in_core_with_a_cell_of_its_own_is_exported() -> None:
    class Halved(LSTM):
        def cell(self, x: Tensor, state: Any) -> Any:
            output, state = super().cell(x, state)
            return output / 2, state

    agent = ActorCritic(env_spec("recall"), partial(Halved, hidden_size=5), encoder_sizes=[6]).eval()
    assert compare(agent, "torch", "recall").largest < 1e-5


def test_a_core_that_fixes_the_number_of_lanes_is_refused_with_the_remedy() -> None:
    class Fixed(Decay):
        def cell(self, x: Tensor, state: Any) -> Any:
            return super().cell(x + torch.zeros(len(x), self.input_size), state)

    with pytest.raises(ValueError, match=r"fixes the number of lanes: use x.shape\[0\] instead of len\(x\)"):
        make_program(ActorCritic(env_spec("recall"), Fixed, encoder_sizes=[6]).eval(), "torch", {})
