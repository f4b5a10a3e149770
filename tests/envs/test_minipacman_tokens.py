"""Mini PacMan's whole map as tokens: against a slow reading of the picture, and as an environment of this package."""

from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode

from rmc_agents.config import Config
from rmc_agents.encoders import Encoder
from rmc_agents.encoders.trunks import FIRST_TOKENS
from rmc_agents.envs.minipacman.tokens import make_vocabulary
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.runs.saved import load_agent
from rmc_agents.spaces import SpaceSpec
from rmc_agents.train.on_policy import OnPolicy


def read_picture(picture: np.ndarray) -> tuple[set[tuple[int, int, str]], tuple[int, int], int]:
    """Things by place relative to Pacman, Pacman's place, and the power, read from the ghosts' colour."""
    places = {(row, column): tuple(map(int, picture[row, column])) for row, column in np.ndindex(15, 19)}
    (pacman,) = (place for place, colour in places.items() if colour == (0, 255, 0))
    things, power = set(), 0
    for (row, column), (red, green, blue) in places.items():
        here = row - pacman[0], column - pacman[1]
        if (red, blue) == (255, 0):
            things.add((*here, "edible" if green else "ghost"))
            power = max(power, round(green * 20 / 255))
        elif (red, green, blue) in {(0, 0, 255), (0, 255, 255)}:
            things.add((*here, "pill" if green else "food"))
    return things, pacman, power


def read_tokens(tokens: np.ndarray) -> tuple[set[tuple[int, int, str]], int, int]:
    """The same from tokens, with the number of Pacman's cell."""
    vocabulary = make_vocabulary()
    *cells, pacman, power = tokens.tolist()
    things = set()
    for place, kind in (divmod(token, 5) for token in cells):
        if kind:
            things.add((*vocabulary.places[place].tolist(), ("food", "pill", "ghost", "edible")[kind - 1]))
    return things, pacman - vocabulary.pacman, power - vocabulary.power


def steps_from(start: tuple[int, int], picture: np.ndarray) -> dict[tuple[int, int], int]:
    """How many steps each free cell of a picture is away."""
    distances, frontier = {start: 0}, [start]
    for row, column in frontier:  # grows during the loop
        for cell in ((row + 1, column), (row - 1, column), (row, column + 1), (row, column - 1)):
            if cell not in distances and tuple(picture[cell]) != (255, 255, 255):
                distances[cell] = distances[row, column] + 1
                frontier.append(cell)
    return distances


def test_cells_come_nearest_first() -> None:
    places = make_vocabulary().places
    pictures, observations = (make_vector_env(f"minipacman-{whole}", 8).reset(seed=5)[0] for whole in ("full", "map"))
    for picture, observation in zip(pictures, observations, strict=True):
        row, column = read_picture(picture)[1]
        distances = steps_from((row, column), picture)
        cells = [(row + down, column + right) for down, right in places[observation[:-2] // 5].tolist()]
        assert sorted(cells) == sorted(distances)
        assert [distances[cell] for cell in cells] == sorted(distances.values())


@pytest.mark.slow
def test_tokens_have_the_pictures_content() -> None:
    pictures, tokens = make_vector_env("minipacman-full", 16), make_vector_env("minipacman-map", 16)
    images, observations = pictures.reset(seed=3)[0], tokens.reset(seed=3)[0]
    cells: dict[int, tuple[int, int]] = {}
    powers = set()
    rng = np.random.default_rng(0)
    for _ in range(120):
        for picture, observation in zip(images, observations, strict=True):
            things, pacman, power = read_picture(picture)
            found, cell, found_power = read_tokens(observation)
            assert (found, found_power) == (things, power)
            assert cells.setdefault(cell, pacman) == pacman  # each cell has a number of its own
            powers.add(power)
        assert observations.dtype == np.int32
        assert tokens.observation_space.contains(observations)
        actions = rng.integers(5, size=16)
        images, observations = pictures.step(actions)[0], tokens.step(actions)[0]
    assert len(set(cells.values())) == len(cells) > 100
    assert powers >= {0, 1, 10, 19}


def test_the_environment_is_saved_and_continues() -> None:
    env = make_vector_env("minipacman-hunt-map", 4)
    env.reset(seed=1)
    state, actions = env.get_state(), np.array([1, 2, 3, 4])
    expected = env.step(actions)[0]
    other = make_vector_env("minipacman-hunt-map", 4)
    other.reset(seed=2)
    other.set_state(state)
    np.testing.assert_array_equal(other.step(actions)[0], expected)
    with pytest.raises(ValueError, match="minipacman-full has"):
        make_vector_env("minipacman-map", 2, autoreset_mode=AutoresetMode.SAME_STEP)


def test_tokens_mean_the_same_wherever_they_stand() -> None:
    env = make_vector_env("minipacman-map", 2)
    spec = SpaceSpec.from_spaces(env.single_observation_space, Discrete(5))
    assert spec == SpaceSpec((140,), "int32", 1.0, 5, tuple(make_vocabulary().sizes.tolist()), obs_are_tokens=True)
    assert spec.obs_categories[0] == 5
    trunk = Encoder(spec).trunk
    tokens = torch.from_numpy(env.reset(seed=0)[0])
    torch.nn.init.normal_(trunk.first_bias)
    torch.nn.init.normal_(trunk.all_bias)
    first = trunk.first(tokens[:, :FIRST_TOKENS]).sum(1) + trunk.first_bias
    expected = [torch.relu(first), torch.relu(trunk.all(tokens).sum(1) + trunk.all_bias)]
    torch.testing.assert_close(trunk(tokens), torch.cat(expected, 1), rtol=1e-4, atol=1e-4)
    other = torch.cat([tokens[:, :FIRST_TOKENS].flip(1), tokens[:, FIRST_TOKENS:].flip(1)], 1)
    torch.testing.assert_close(trunk(other), trunk(tokens), rtol=1e-4, atol=1e-4)


def test_an_agent_is_saved_with_its_tokens_and_muon_leaves_their_tables_to_adam(tmp_path: Path) -> None:
    settings = {"env": "minipacman-map", "core": "gru", "hidden_size": 8, "num_envs": 2}
    trainer = OnPolicy(Config().updated(settings | {"optimizer": "muon"}, "test"), torch.device("cpu"))
    muon = {id(parameter) for group in trainer.optimizer.parts[1].param_groups for parameter in group["params"]}
    named = dict(trainer.agent.named_parameters())
    tables = [named[f"encoder.trunk.{part}.weight"] for part in ("first", "all")]
    assert not muon & set(map(id, tables))
    assert id(named["encoder.layers.0.weight"]) in muon
    before = [table.detach().clone() for table in tables]
    trainer.update()
    assert not any(map(torch.equal, before, tables))
    saved = load_agent(trainer.save(tmp_path, 0.0), torch.device("cpu"))
    assert saved.spec == trainer.lanes.spec
    assert torch.equal(saved.agent.encoder.trunk.first.weight, tables[0])
