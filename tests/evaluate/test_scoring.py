"""rmc.evaluate, rmc.record_video and the like: the figures, films and files of the commands, from Python."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete

import rmc_agents as rmc
from helpers.noise import Noise
from rmc_agents.evaluate.episodes import PlaySettings, evaluate_beside_random
from rmc_agents.stream import Lanes

CPU = torch.device("cpu")
TWO_TASKS = ("recall-rmc", "minipacman-rmc")


class OneNoise(Noise):
    metadata = Noise.metadata | {"num_episodes": 1}


class ThreeNoises(Noise):
    metadata = Noise.metadata | {"num_episodes": "three"}


@pytest.fixture(scope="module")
def agent() -> rmc.ActorCritic:
    torch.manual_seed(0)
    return rmc.ActorCritic(rmc.SpaceSpec.of(Noise()), partial(rmc.LSTM, hidden_size=8), encoder_sizes=(8,))


def test_a_saved_agent_scores_as_on_the_command_line() -> None:
    random = torch.get_rng_state()
    saved = rmc.load("recall-rmc", device="cpu")
    assert torch.equal(torch.get_rng_state(), random)
    expected = evaluate_beside_random(saved.agent, "recall", 12, PlaySettings(3, CPU))
    for env in (None, "recall"):
        statistics = rmc.evaluate(saved, env, 12, seed=3)
        assert (statistics.mean_return, statistics.ci95) == (expected["mean_return"], expected["ci95"])
        assert statistics.success_rate == expected["success_rate"]


def test_an_environment_class_is_played_and_the_mode_is_restored(agent: rmc.ActorCritic) -> None:
    for is_training in (True, False):
        agent.train(is_training)
        assert rmc.evaluate(agent, Noise, 5, max_steps=4).episodes == 5
        assert agent.training == is_training


def test_an_agent_of_ones_own_gives_its_likeliest_answers() -> None:
    torch.manual_seed(0)
    for env, is_greedy in (("nth-farthest-vectors3", True), ("recall", False)):
        agent = rmc.ActorCritic(rmc.SpaceSpec.of(rmc.make_env(env)), "lstm", encoder_sizes=(8,))
        lanes = Lanes(rmc.make_env(env), 3, CPU)
        assert PlaySettings.of(agent, 3, False, 50).is_greedy(lanes) == is_greedy
        assert rmc.evaluate(agent, env, 9, seed=3) == rmc.evaluate(agent, env, 9, seed=3, deterministic=is_greedy)


def test_a_film_of_an_environment_class(agent: rmc.ActorCritic, tmp_path: Path) -> None:
    recorded = rmc.record_video(agent, Noise, tmp_path / "noise.gif", episodes=1, max_steps=2)
    assert recorded.path.stat().st_size > 0
    assert len(recorded.returns) == 1


def test_without_its_memory_a_saved_agent_guesses() -> None:
    saved = rmc.load("recall-rmc", device="cpu")
    found = rmc.ablate_memory(saved, None, 12, windows=[2], seed=3)
    assert list(found) == ["intact", "reset at every step", "shuffled between lanes", "last 2 steps"]
    assert found["intact"] == rmc.evaluate(saved, None, 12, seed=3)
    assert found["intact"].mean_return > found["reset at every step"].mean_return


def test_a_page_has_an_episode_of_each_agent(agent: rmc.ActorCritic, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    rmc.record_replay({"first agent": agent, "second agent": agent}, Noise, page, max_steps=2)
    text = page.read_text()
    assert "first agent" in text
    assert "second agent" in text


def test_a_saved_agent_is_exported_and_opened_again(tmp_path: Path) -> None:
    saved = rmc.load("recall-rmc", device="cpu")
    exported = rmc.export(saved, tmp_path / "recall.safetensors", 12, seed=np.int64(3))  # type: ignore[arg-type]
    assert exported.statistics == rmc.evaluate(saved, None, 12, seed=3)
    assert rmc.load(tmp_path / "recall.safetensors").provenance == exported.provenance
    assert exported.difference is None


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            lambda agent: rmc.evaluate(agent, Noise()),
            "env: expected a name, or a class or function .* got an object, Noise",
        ),
        (rmc.evaluate, "env: expected an environment, because only a saved agent has"),
        (lambda agent: rmc.evaluate(agent, "recall"), "does not fit environment 'recall'"),
        (
            lambda agent: rmc.evaluate("recall-rmc", "recall"),
            "expected an ActorCritic, a Policy or the result of rmc.load",
        ),
        (
            lambda agent: rmc.evaluate(rmc.UniformPolicy, Noise),
            "rmc.load, got the class UniformPolicy; pass an object of it",
        ),
        (lambda agent: rmc.evaluate(agent, Noise, 0), "episodes: expected an int of at least 1, got 0"),
        (lambda agent: rmc.evaluate(agent, Noise, max_steps=0), "max_steps: expected an int of at least 1, got 0"),
        (lambda agent: rmc.evaluate(agent, Noise, seed=-1), "seed: expected an int of at least 0, got -1"),
        (lambda agent: rmc.evaluate(agent, ThreeNoises), "metadata\\['num_episodes'\\]: expected an int of at least 1"),
        (lambda agent: rmc.evaluate(agent, Noise, 3, jobs=0), "jobs: expected an int of at least 1, got 0"),
        (lambda agent: rmc.Collector(agent, rmc.make_env(Noise), 0), "unroll_length: expected an int of at least 1"),
        (
            lambda _: rmc.evaluate(rmc.ActorCritic(rmc.SpaceSpec.from_spaces(Discrete(3), Discrete(4)), "gru"), Noise),
            "got observations .* agents are built for the spaces of rmc.make_env's environments",
        ),
        (lambda agent: rmc.record_video(agent, Noise, "x.avi"), "expected a file name that ends in .mp4 or .gif"),
        (lambda agent: rmc.record_replay({"a": agent}, Noise, "x.gif"), "expected a file name that ends in .html"),
        (lambda agent: rmc.record_replay({"a": agent}, Noise, "x.html", window=0), "window: expected an int of at"),
        (lambda agent: rmc.record_replay({}, Noise, "x.html"), "expected agents of one environment, got none"),
        (
            lambda agent: rmc.record_replay({name: rmc.load(name) for name in TWO_TASKS}, None, "x.html"),
            "expected agents of one environment, got minipacman, recall",
        ),
        (
            lambda agent: rmc.ablate_memory(agent, OneNoise, 9),
            "expected at least 2 different episodes, which swap memories, got one",
        ),
        (lambda agent: rmc.ablate_memory(rmc.load("minipacman-none")), "core has no memory that could be removed"),
        (lambda agent: rmc.compare({"a": [agent]}, "c"), "agents: expected folders by the agent's name"),
        (lambda agent: rmc.compare({"a": 3}, "c"), "agents: expected folders by the agent's name"),
        (lambda agent: rmc.compare({"a": ["runs/A"], "b": []}, "c"), "agents: expected folders by .* 'b': \\[\\]}"),
        (lambda agent: rmc.record_attention(agent, Noise, "x.gif"), "expected a file name that ends in .png"),
        (
            lambda agent: rmc.record_attention(rmc.UniformPolicy(agent.spec), Noise, "x.png"),
            "expected an agent of this project's own algorithms, got UniformPolicy",
        ),
        (
            lambda agent: rmc.evaluate(SimpleNamespace(agent=agent)),
            r"SimpleNamespace; pass its .agent, or rmc.load",
        ),
        (lambda agent: rmc.evaluate(Path("runs/a")), r"got .*Path; pass rmc.load\('runs/a'\)"),
        (lambda agent: rmc.export(rmc.load("recall-rmc"), "recall.zip"), "ends in .safetensors, .onnx, .pt2"),
        (lambda agent: rmc.sample_text(agent, env=Noise), "expected an agent of a text"),
        (
            lambda agent: rmc.record_replay(agent, Noise, "x.html"),
            "expected agents by name, such as .*, got Actor",
        ),
        (
            lambda agent: rmc.export(agent, "a.safetensors", env="recall"),
            "in .onnx or .pt2, because an ActorCritic has",
        ),
        (
            lambda agent: rmc.export(agent.core, "a.pt2", env="recall"),
            "expected an ActorCritic or the result of rmc.lo",
        ),
        (lambda agent: rmc.plot(["a"], "a.jpg"), "expected a file name that ends in .png"),
        (lambda agent: rmc.plot([], "a.png"), "expected at least one run's folder"),
        (lambda agent: rmc.plot(["a"], "a.png", metric="score"), "metric: expected one of return, success, accuracy"),
        (lambda agent: rmc.compare(["a"], "x"), "expected folders by the agent's name, such as .*, got \\['a'\\]"),
        (lambda agent: rmc.compare({"a": ["no/such/run"]}, "x"), "there is no run no/such/run"),
        (lambda agent: rmc.compare({"a": "runs/A"}, "x"), "expected folders by the agent's name, such as .*'runs/A'}"),
        (lambda agent: rmc.export(rmc.load("recall-rmc"), "x.safetensors", seed=-1), "seed: expected an int of at"),
        (lambda agent: rmc.load("recall-rnc"), "did you mean 'recall-rmc'"),
        (lambda agent: rmc.load(None), "source: expected a path or the name of a pretrained policy, got None"),
        (lambda agent: rmc.load("no/such/run"), "there is no checkpoint no/such/run"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    agent: rmc.ActorCritic, call: Callable[[rmc.ActorCritic], Any], expected: str
) -> None:
    with pytest.raises(ValueError, match=expected) as caught:
        call(agent)
    assert "\n" not in str(caught.value)
