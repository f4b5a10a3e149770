"""Saved agents with custom parts."""

import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch

from rmc_agents import encoders
from rmc_agents.agent import ActorCritic
from rmc_agents.config import Config
from rmc_agents.encoders import Encoder
from rmc_agents.runs.saved import Provenance, SavedAgent, _WithoutValues, load, pick_device, save_agent
from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import NotRegistered, TimeStep

SPEC = SpaceSpec((3,), "float32", 1.0, 2)


class Plain(torch.nn.Module):
    def __init__(self, spec: SpaceSpec) -> None:
        super().__init__()
        self.output_size, self.layer = 4, torch.nn.Linear(3, 4)

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


def test_another_default_dtype_is_not_damage() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match=r"default dtype: expected float32, as of all agents, got torch\.float64"):
            load("recall-rmc")
    finally:
        torch.set_default_dtype(torch.float32)


def test_sizes_that_a_file_claims_are_not_allocated() -> None:
    tracemalloc.start()
    with torch.device("meta"), _WithoutValues():
        Encoder(SpaceSpec((2,), "float32", 1.0, num_actions=300_000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 300_000


@pytest.mark.parametrize("device", ["gpu", None])
def test_a_device_that_does_not_exist_is_refused(device: Any) -> None:
    with pytest.raises(ValueError, match="device: expected auto, cpu or cuda, got"):
        pick_device(device)
