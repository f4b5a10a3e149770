"""Saved agents with custom parts."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from rmc_agents import encoders
from rmc_agents.agent import ActorCritic
from rmc_agents.config import CORES, Config
from rmc_agents.cores import Core, register_core
from rmc_agents.encoders import Encoder
from rmc_agents.envs.own import own_id
from rmc_agents.registry import NotRegistered
from rmc_agents.runs.saved import (
    Provenance,
    SavedAgent,
    _OwnGenerator,
    _WithoutValues,
    given_env,
    load,
    pick_device,
    save_agent,
    saved_env,
    to_provenance,
)
from rmc_agents.spaces import SpaceSpec
from rmc_agents.train.run import resume, train
from rmc_agents.types import State, TimeStep

SPEC = SpaceSpec((3,), "float32", 1.0, 2)


class Plain(torch.nn.Module):
    def __init__(self, spec: SpaceSpec) -> None:
        super().__init__()
        self.output_size, self.layer = 4, torch.nn.Linear(spec.obs_shape[0], 4)

    def forward(self, steps: TimeStep) -> torch.Tensor:
        return self.layer(steps.obs)


def test_a_custom_encoder_has_to_be_registered_to_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoders._registry, "registered", {})
    encoders.register_encoder("plain", Plain)
    config = Config().updated({"encoder": "plain", "core": "lstm"}, "test")
    agent = ActorCritic.from_config(SPEC, config.core, config.agent)
    path = tmp_path / "own.safetensors"
    save_agent(path, SavedAgent(agent, config, SPEC, path, 0), Provenance("0", 0.0, (0.0, 0.0), 1, 0))
    again = load(path, device="cpu").agent
    assert torch.equal(again.encoder.layer.weight, agent.encoder.layer.weight)
    assert not again.training
    encoders._registry.registered.clear()
    with pytest.raises(NotRegistered, match=r"there is no encoder 'plain'.*register_encoder") as caught:
        load(path, device="cpu")
    assert "\n" not in str(caught.value)


class Constants(Plain):
    """What users compute in constructors: with values, and with infinity."""

    def __init__(self, spec: SpaceSpec) -> None:
        super().__init__(spec)
        self.register_buffer("scales", 1 / torch.arange(1, 9, 2) + torch.linspace(0, 0.1, 4).tolist()[1])
        self.register_buffer("mask", torch.nn.Transformer.generate_square_subsequent_mask(3))
        self.calls = 0

    def forward(self, steps: TimeStep) -> torch.Tensor:
        self.calls -= 3
        return super().forward(steps)

    def get_extra_state(self) -> dict[str, int]:
        return {"calls": self.calls}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


class Collecting(Constants):
    def get_extra_state(self) -> Any:
        return {"seen": {1, 2}}


class Numbering(Constants):
    def get_extra_state(self) -> Any:
        return {7: 1}


class Expanded(Constants):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.register_buffer("rates", torch.ones(1).expand(3))


class LearnedStart(Core):
    def __init__(self, input_size: int) -> None:
        super().__init__(input_size)
        self.start = torch.nn.Parameter(torch.ones(input_size))

    def initial_leaves(self) -> tuple[torch.Tensor, ...]:
        return self.start.repeat(1, 1), torch.full((1, 2), -torch.inf)

    def cell(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        return x + state[0], state


def test_what_custom_parts_do_in_constructors_is_no_damage(tmp_path: Path) -> None:
    encoders.register_encoder("constants", Constants)
    register_core("learned-start", LearnedStart)
    settings = {"env": "CartPole-v1", "encoder": "constants", "core": "learned-start", "num_envs": 4, "video": False}
    settings |= {"encoder_args": {}, "total_frames": 160, "eval_episodes": 0, "learning_rate_schedule": "constant"}
    run = train(settings, run_dir=tmp_path / "run", console=Console(quiet=True))
    again = load(run.path, device="cpu").agent
    assert again.encoder.calls == run.agent.encoder.calls < 0  # type: ignore[attr-defined]
    assert torch.equal(again.encoder.scales, run.agent.encoder.scales)  # type: ignore[attr-defined]
    assert resume(run.path, {"total_frames": 240}, console=Console(quiet=True)).summary["frames"] == 240


@pytest.mark.parametrize(
    ("encoder", "problem"),
    [
        (Collecting, r"get_extra_state\(\) of the agent's modules: .*encoder._extra_state/seen is a set"),
        (Numbering, r"get_extra_state\(\) of the agent's modules: .*has the key 7"),
        (Expanded, "the agent's state cannot be loaded again: .*encoder.rates"),
    ],
)
def test_state_that_no_checkpoint_can_hold_is_reported_before_training(
    encoder: Any, problem: str, tmp_path: Path
) -> None:
    encoders.register_encoder(encoder.__name__.lower(), encoder)
    settings = {"env": "CartPole-v1", "encoder": encoder.__name__.lower(), "encoder_args": {}, "total_frames": 160}
    with pytest.raises(ValueError, match=f"(?s){problem}"):
        train(settings, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_another_default_dtype_is_not_damage() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match=r"default dtype: expected float32, as of all agents, got torch\.float64"):
            load("recall-rmc")
        with pytest.raises(ValueError, match=r"default dtype: expected float32, as of all agents, got torch\.float64"):
            ActorCritic(SPEC, "lstm")
    finally:
        torch.set_default_dtype(torch.float32)


def test_sizes_that_a_file_claims_are_not_allocated() -> None:
    tracemalloc.start()
    with torch.device("meta"), _WithoutValues():
        Encoder(SpaceSpec((2,), "float32", 1.0, num_actions=300_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300_000


@pytest.mark.parametrize("device", ["gpu", "meta", None, "cuda:1000"])
def test_a_device_that_does_not_exist_is_refused(device: Any) -> None:
    expected = "torch finds no such GPU" if device == "cuda:1000" else "expected auto, cpu, cuda or cuda:N, got"
    with pytest.raises(ValueError, match=rf"device( cuda:1000)?: {expected}"):
        pick_device(device)


def test_an_environments_name_in_several_lines_is_shown_in_one(tmp_path: Path) -> None:
    """Its arguments may be a maze or the path of a text."""
    agent, path = ActorCritic(SPEC, "none"), tmp_path / "a.safetensors"
    provenance = Provenance("0", 0.0, None, 1, 0, "Maze(layout='#\n#\u00a0')")
    save_agent(path, SavedAgent(agent, Config().updated({"core": "none"}, "test"), SPEC, path, 0), provenance)
    found = load(path, device="cpu").provenance
    assert found is not None
    assert found.env == "Maze(layout='#?#?')"


@pytest.mark.parametrize("fields", [[1.0], None, {"version": "0"}])
def test_a_provenance_of_another_form_is_damage(fields: Any) -> None:
    with pytest.raises(ValueError, match="provenance"):
        to_provenance(fields)


def test_a_provenance_of_an_older_file_names_no_environment() -> None:
    older = {"version": "0", "mean_return": 1.0, "ci95": [0.0, 2.0], "episodes": 3, "seed": 4}
    assert to_provenance(older) == Provenance("0", 1.0, (0.0, 2.0), 3, 4)


def test_a_named_environment_is_the_one_of_evaluations_with_the_arguments_of_the_training() -> None:
    def arguments(name: str, given: str, env_kwargs: dict[str, Any]) -> Any:
        config = Config().updated({"env": name, "env_kwargs": {} if "text" in name else {"nesting": 1}}, "test")
        saved: Any = SavedAgent(None, config, SPEC, Path("run"), 0)  # type: ignore[type-var]
        if given == name and not env_kwargs:
            assert vars(given_env(saved, given)) == vars(saved_env(saved))
        return getattr(given_env(saved, given, env_kwargs), "env_kwargs", {})

    assert arguments("program-copy", "program-copy", {}) == {"nesting": 1, "at_maxima": True}
    assert arguments("program-copy", "program-double", {}) == {"at_maxima": True}
    assert arguments("program-copy", "program-copy", {"at_maxima": False}) == {"at_maxima": False}
    config = Config().updated({"env": own_id("<lambda>"), "env_kwargs": {"length": 3}}, "test")
    trained: Any = SavedAgent(None, config, SPEC, Path("run"), 0)  # type: ignore[type-var]
    other = lambda: None  # noqa: E731
    assert given_env(trained, other) is other
    assert arguments("mine:Walk", "Walk", {}) == {"nesting": 1}
    assert arguments("mine:Walk", "other:Walk", {}) == {}
    assert arguments("text:a", "text:b", {}) == {"part": "heldout", "steps": 10_000}
    assert arguments("text:a", "text-all:a", {}) == {"steps": 10_000}


@pytest.mark.parametrize("spec", [SPEC, SpaceSpec((5, 5, 3), "uint8", 255.0, 2)])
def test_new_weights_that_a_file_replaces_use_up_no_random_numbers(spec: SpaceSpec) -> None:
    """Restoring the generator afterwards would also take back what other threads have drawn meanwhile."""
    state = torch.get_rng_state()
    for core in CORES:
        with _OwnGenerator():
            ActorCritic(spec, core)
    assert torch.equal(torch.get_rng_state(), state)


def test_an_agent_of_built_in_parts_is_opened_beside_threads_that_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_rng_state", None)
    state = torch.get_rng_state()
    load("recall-rmc", device="cpu")
    assert torch.equal(torch.get_rng_state(), state)
