"""What a replay records of an episode: the environment's pictures and the agent's numbers."""

from base64 import b64decode
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers.agents import CPU, SPEC, make_agent, random_steps
from rmc_agents.agent import ActorCritic
from rmc_agents.config import TrainConfig
from rmc_agents.cores import Core
from rmc_agents.envs.making import make_env
from rmc_agents.evaluate.episodes import PlaySettings, UniformPolicy, env_spec
from rmc_agents.evaluate.replay.grids import CellGrid, Film, Glyph
from rmc_agents.evaluate.replay.memory import MIN_PEAK, Played, comparisons, peaks, strip, strips
from rmc_agents.evaluate.replay.recorder import record
from rmc_agents.evaluate.replay.scenes import AHEAD, scene_of, view_of
from rmc_agents.spaces import SpaceSpec
from rmc_agents.types import AgentOutput, at, map_leaves

STEPS, WINDOW = 12, 3


def decided_agent(core: str, decision: float = 500.0, **settings: Any) -> ActorCritic:
    """An agent with a policy that clearly depends on its memory."""
    torch.manual_seed(13)
    agent = make_agent(core, **settings)
    with torch.no_grad():
        agent.policy.weight.mul_(decision)
    return agent


def played(agent: ActorCritic) -> Played:
    steps = random_steps(STEPS, 1)
    steps = steps._replace(is_first=torch.arange(STEPS)[:, None] == 0)
    states, outputs = [agent.initial_state(1)], []
    with torch.no_grad():
        for step in range(STEPS):
            output, state = agent.step(at(steps, step), states[-1])
            outputs.append(output)
            states.append(state)
    before, after = (map_leaves(lambda *x: torch.cat(x), *part) for part in (states[:-1], states[1:]))
    together = AgentOutput(*(torch.cat(x) for x in zip(*outputs, strict=True)))
    return Played(at(steps, slice(None), 0), together, before, after)


@pytest.mark.parametrize(("core", "decision"), [("rmc", 500.0), ("lstm", 5000.0)])
def test_comparisons_are_what_an_agent_does_that_knows_the_last_steps_alone(core: str, decision: float) -> None:
    agent = decided_agent(core, decision)
    episode = played(agent)
    for compared, known in zip(comparisons(agent, episode, WINDOW), (1, WINDOW), strict=True):
        for step in range(STEPS):
            recent = slice(max(0, step + 1 - known), step + 1)
            lane = at(episode.steps, recent, None)
            with torch.no_grad():
                logits = agent.unroll(lane, agent.initial_state(1))[0].policy_logits[-1, 0]
            p, q = (x.double().log_softmax(0) for x in (episode.output.policy_logits[step], logits))
            np.testing.assert_allclose(compared["shares"][step], q.exp(), atol=1e-3)
            assert compared["divergence"][step] == pytest.approx(float((p.exp() * (p - q)).sum()), abs=2e-3)
        likeliest = episode.output.policy_logits.argmax(1) != torch.tensor(compared["shares"]).argmax(1)
        assert compared["changed"] == int(likeliest.sum())
        assert max(compared["divergence"]) > 0.1
        assert compared["divergence"][0] == pytest.approx(0, abs=1e-4)


def test_peaks_are_the_largest_apart_from_each_other() -> None:
    values = [0.0] * 40
    values[5], values[6], values[20], values[30] = 1.0, 0.9, 2.0, MIN_PEAK / 2
    assert peaks(values) == [5, 20]


def unpacked(packed: dict[str, Any]) -> np.ndarray:
    data = np.frombuffer(b64decode(packed["data"]), np.uint8).reshape(-1, len(packed["labels"]))
    return packed["low"] + data / 255 * (packed["high"] - packed["low"])


def test_strips_of_slots_are_the_cores() -> None:
    agent = decided_agent("rmc", mem_slots=3)
    episode = played(agent)
    found = {packed["name"]: packed for packed in strips(agent, episode)}
    attention = agent.attention(episode.steps, episode.before)
    assert attention is not None
    np.testing.assert_allclose(unpacked(found["head 2"]), attention[:, -1, 1].flatten(1), atol=1 / 255)
    assert found["head 2"]["labels"][3] == "slot 1 → input"
    memory = episode.after.memory
    expected = torch.stack(
        [torch.cosine_similarity(memory[:, i], memory[:, j]) for i, j in ((0, 1), (0, 2), (1, 2))], 1
    )
    np.testing.assert_allclose(unpacked(found["memory: similarity (cosine)"]), expected, atol=0.01)
    assert {"input gate", "forget gate", "memory: change"} < set(found)


def test_the_table_of_eight_slots_is_complete() -> None:
    agent = decided_agent("rmc", mem_slots=8)
    attention = strips(agent, played(agent))[0]
    assert attention["shape"] == [8, 9]
    assert len(attention["labels"]) == 72


def test_strips_of_a_window_are_the_steps_that_it_looks_at() -> None:
    agent = decided_agent("transformer", memory_length=3)
    episode = played(agent)
    first, second = strips(agent, episode)
    assert first["labels"] == ["3 back", "2 back", "1 back", "now"]
    assert "shape" not in first  # a table of slots
    attention = agent.attention(episode.steps, episode.before)
    assert attention is not None
    np.testing.assert_allclose(unpacked(second), attention[:, -1, 1, 0], atol=1 / 255)


def test_strips_of_units_are_those_that_vary_most() -> None:
    values = np.zeros((5, 100), np.float32)
    values[2, 90] = -3.0
    packed = strip("cell", "state", [f"unit {i + 1}" for i in range(100)], values)
    assert len(packed["labels"]) == 64
    assert unpacked(packed)[2, packed["labels"].index("unit 91")] == -3.0
    agent = decided_agent("lstm")
    names = [packed["name"] for packed in strips(agent, played(agent))]
    assert names == ["input gate", "forget gate", "output gate", "hidden", "cell"]


class Clock(Core):
    """Its state is one number."""

    def initial_leaves(self) -> tuple[Tensor, ...]:
        return (torch.zeros(1),)

    def cell(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        return x * state[0].unsqueeze(1), (state[0] + 1,)


def test_a_state_of_one_number_is_a_strip_too() -> None:
    agent = ActorCritic(SPEC, Clock, encoder_sizes=[8])
    (packed,) = strips(agent, played(agent))
    assert packed["labels"] == ["unit 1"]
    assert (packed["low"], packed["high"]) == (1, STEPS)


def test_the_slots_of_a_state_may_be_flags() -> None:
    class Flags(Clock):
        def initial_leaves(self) -> tuple[Tensor, ...]:
            return torch.zeros(1), torch.zeros(1, 2, 3, dtype=torch.bool)

        def cell(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            output, (number,) = super().cell(x, state)
            return output, (number, ~state[1])

    agent = ActorCritic(SPEC, Flags, encoder_sizes=[8])
    change = next(packed for packed in strips(agent, played(agent)) if packed["name"] == "state 2: change")
    np.testing.assert_allclose(unpacked(change), 1.0, atol=1 / 255)


def test_complex_numbers_of_a_state_are_two_units_each() -> None:
    class Turning(Core):
        def initial_leaves(self) -> tuple[Tensor, ...]:
            return torch.ones(1, dtype=torch.complex64), torch.ones(1, 3, 2, dtype=torch.complex64)

        def cell(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            return x, tuple(leaf * 1j for leaf in state)

    agent = ActorCritic(SPEC, Turning, encoder_sizes=[8])
    units, change, _ = strips(agent, played(agent))
    assert units["labels"] == ["unit 1", "unit 2"]
    np.testing.assert_allclose(unpacked(units)[:4], [[0, 1], [-1, 0], [0, -1], [1, 0]], atol=1 / 100)
    np.testing.assert_allclose(unpacked(change), 2**0.5, rtol=1 / 100)


def test_an_empty_state_has_no_strip() -> None:
    class Empty(Clock):
        def initial_leaves(self) -> tuple[Tensor, ...]:
            return torch.zeros(1), torch.zeros(1, 0)

        def cell(self, x: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
            output, (number,) = super().cell(x, state)
            return output, (number, state[1])

    agent = ActorCritic(SPEC, Empty, encoder_sizes=[8])
    assert [packed["name"] for packed in strips(agent, played(agent))] == ["state 1"]


def replayed(packed: dict[str, Any]) -> list[list[tuple]]:
    """The pictures of a film, as the page unpacks them."""
    cells, pictures = [-1] * (packed["rows"] * packed["columns"]), []
    for change in packed["changes"]:
        for cell, glyph in zip(change[::2], change[1::2], strict=True):
            cells[cell] = glyph
        pictures.append([packed["glyphs"][glyph] for glyph in cells])
    return pictures


def test_film_keeps_every_picture() -> None:
    shown = [[Glyph("a"), Glyph("b")], [Glyph("a"), Glyph("a", "#fff")], [Glyph("b"), Glyph("a", "#fff")]]
    film = Film()
    for cells in shown:
        film.add(CellGrid(1, 2, cells))
    packed = film.packed()
    assert replayed(packed) == shown
    assert packed["changes"][1:] == [[1, 2], [0, 1]]


MAZE = {
    "tube": "#",
    "empty": " ",
    "food": ".",
    "pill": "o",
    "pacman": "C",
    "ghost": "M",
    "scared": "W",
    "recovering": "W",
}


def test_the_maze_is_the_environments() -> None:
    env = make_env("minipacman", render_mode="ansi")
    env.reset(seed=3)
    draw = scene_of(env)
    assert draw is not None
    for action in np.random.default_rng(0).integers(5, size=200):
        picture, text = draw(), env.render()
        assert text is not None
        rows = str(text[0]).split("\n")[1:]
        assert "".join(MAZE[glyph.shape] for glyph in picture.cells) == "".join(rows)
        assert picture.window is not None
        top, left, side, _ = picture.window
        assert rows[top + side // 2][left + side // 2] == "C"
        env.step(np.array([action]))


def test_the_room_is_the_environments() -> None:
    env = make_env("boxworld", render_mode="ansi")
    env.reset(seed=3)
    draw = scene_of(env)
    assert draw is not None
    for action in np.random.default_rng(0).integers(4, size=200):
        picture, text = draw(), env.render()
        assert text is not None
        inner = np.array([glyph.shape for glyph in picture.cells]).reshape(picture.rows, -1)[1:-1, 1:-1]
        for shape, character in zip(inner.ravel(), "".join(str(text[0]).split("\n")[1:]), strict=True):
            kinds = {"@": "explorer", ".": "empty", "*": ("gem", "content")}
            assert shape in kinds.get(character, "lock" if character.isupper() else ("loose", "content"))
        env.step(np.array([action]))


def test_what_the_agent_sees_of_a_hallway_lies_in_its_window() -> None:
    env = make_env("memory-s7")
    array, obs = SpaceSpec.of(env).array, env.reset(seed=3)[0]
    draw = scene_of(env)
    assert draw is not None
    for action in (2, 0, 2, 1, 1, 2, 2, 0):
        scene, view = draw(), view_of(env, array, obs[0])
        assert isinstance(view, CellGrid)
        assert scene.window is not None
        place = next(i for i, glyph in enumerate(scene.cells) if glyph.shape == "arrow")
        direction, side = scene.cells[place].turn, view.rows
        (down, right), (down_aside, right_aside) = AHEAD[direction], AHEAD[(direction + 1) % 4]
        for cell, seen in enumerate(view.cells):
            ahead, aside = side - 1 - cell // side, cell % side - side // 2
            row = place // scene.columns + ahead * down + aside * down_aside
            column = place % scene.columns + ahead * right + aside * right_aside
            top, left, height, width = scene.window
            assert top <= row < top + height
            assert left <= column < left + width
            if seen.shape not in ("unseen", "arrow"):
                assert scene.cells[row * scene.columns + column] == seen
        obs = env.step(np.array([action]))[0]


def test_an_episode_has_a_picture_more_than_steps() -> None:
    run = record(decided_agent("rmc"), "minipacman", PlaySettings(2, CPU, max_steps=9), name="a", window=2)
    assert run["length"] == len(run["values"]) == len(run["rewards"]) == len(run["shares"]) == 9
    assert len(run["scene"]["changes"]) == len(run["view"]["changes"]) == len(run["counters"]["level"]) == 10
    assert run["end"] == "recording ends after 9 steps"
    assert {packed["group"] for packed in run["strips"]} == {"attention", "gates", "slots"}


def test_values_that_were_never_learned_are_not_recorded() -> None:
    settings = PlaySettings(0, CPU, max_steps=3)
    assert record(decided_agent("none"), "minipacman", settings, name="a", window=2, value_scale=None)["values"] is None
    assert TrainConfig(algo="supervised").value_scale is None


def test_an_agent_without_memory_is_said_to_have_none() -> None:
    run = record(decided_agent("none"), "minipacman", PlaySettings(0, CPU, max_steps=3), name="a", window=2)
    assert "has no memory" in run["note"]
    assert (run["compared"], run["peaks"], run["strips"]) == ([], [], [])


def test_another_kind_of_policy_shows_no_memory() -> None:
    policy = UniformPolicy(env_spec("minipacman"))
    run = record(policy, "minipacman", PlaySettings(0, CPU, max_steps=3), name="a", window=2)
    assert "cannot be inspected" in run["note"]
    assert run["shares"] == [[0.2] * 5] * 3


def test_an_environment_that_cannot_draw_is_shown_by_its_observations() -> None:
    env = "helpers.wandering:Wanderer-v0"
    run = record(UniformPolicy(env_spec(env)), env, PlaySettings(0, CPU, max_steps=3), name="a", window=2)
    assert len(run["scene"]["order"]) == 4
