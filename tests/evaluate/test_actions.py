"""Actions of every space as rows with names and bars, in videos and pages."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers import zoo  # registers environments
from rmc_agents.agent import ActorCritic
from rmc_agents.envs.making import make_env
from rmc_agents.evaluate.actions import action_rows, shares, taken, text_of
from rmc_agents.evaluate.episodes import PlaySettings, env_spec
from rmc_agents.evaluate.replay import recorder
from rmc_agents.evaluate.video import recording
from rmc_agents.spaces import SpaceSpec

CPU = torch.device("cpu")


def test_choices_numbers_and_bits_of_a_tuple() -> None:
    env = make_env("Zoo-TupleActions-v0")
    spec = SpaceSpec.of(env)
    rows = action_rows(env, spec)
    assert [row.name for row in rows] == ["0: 1", "0: 2", "1/0", "1/1", "2/0", "2/1"]
    policy = spec.distribution(torch.tensor([[0.0, math.log(3), 0.5, -2.0, 0.0, math.log(9), 0.0, 0.0]]))
    bars = shares(policy)[0]
    torch.testing.assert_close(bars, torch.tensor([0.25, 0.75, 0.75, 0.0, 0.5, 0.9]))
    labels = [row.label(float(bar)) for row, bar in zip(rows, bars, strict=True)]
    assert labels == ["25%", "75%", "1.5", "-3", "50%", "90%"]
    action = torch.tensor([[1.0, -0.5, 2.0, 0.0, 1.0]])
    assert taken(spec, action).tolist() == [[0, 1, 0.25, 1, 0, 1]]
    assert text_of(action, rows, spec) == "2, -1.5, 3, 0, 1"


@pytest.mark.parametrize(
    ("kind", "names", "action", "text"),
    [
        ("Start", ["5", "6", "7"], [1], "6"),
        ("MultiDiscrete", ["0: 0", "0: 1", "0: 2", "1: 4", "1: 5"], [[2, 1]], "2, 5"),
        ("Box", ["0", "1"], [[0.0, 1.0]], "-0.5, 10"),
    ],
)
def test_names_count_as_the_environment_does(kind: str, names: list[str], action: list, text: str) -> None:
    env = make_env(f"Zoo-{kind}-v0")
    spec = SpaceSpec.of(env)
    rows = action_rows(env, spec)
    assert [row.name for row in rows] == names
    assert text_of(torch.tensor(action), rows, spec) == text
    env.metadata = env.metadata | {"action_names": [f"name {i}" for i in range(len(names))]}
    assert [row.name for row in action_rows(env, spec)] == [f"name {i}" for i in range(len(names))]


def test_a_page_shows_all_kinds_of_actions() -> None:
    env = "Zoo-TupleActions-v0"
    agent = ActorCritic(env_spec(env), "lstm")
    run = recorder.record(agent, env, PlaySettings(0, CPU), name="a", window=2)
    assert [row["bounds"] for row in run["rows"]] == [None, None, (-3, 3), (-3, 3), None, None]
    for shown in (run, *run["compared"]):
        assert np.shape(shown["shares"]) == (zoo.LENGTH, 6)
    for text, chosen in zip(run["actions"], run["chosen"], strict=True):
        choice, _, _, *bits = map(float, text.split(", "))
        assert chosen == [int(choice) - 1, *(4 + i for i, bit in enumerate(bits) if bit)]


def test_the_picture_in_a_nested_observation_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    env, views, compose = "Zoo-Picture-v0", [], recording.compose
    monkeypatch.setattr(
        recording, "compose", lambda frame, view, facts: views.append(view) or compose(frame, view, facts)
    )
    agent = ActorCritic(env_spec(env), "lstm")
    recording.record(agent, env, tmp_path / "a.gif", PlaySettings(0, CPU), episodes=1)
    assert [view.shape for view in views] == [(36, 40, 3)] * (zoo.LENGTH + 1)
    assert recorder.record(agent, env, PlaySettings(0, CPU), name="a", window=2)["view"] is not None
