"""Mini PacMan's rules: the compiled engine against the plain oracle, and known figures."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from oracles.minipacman import FREE, LEVEL_ENDS, REWARDS, Game, SplitMix, exits
from rmc_agents.envs.minipacman.env import MiniPacmanVectorEnv
from rmc_agents.envs.minipacman.map import make_maze
from rmc_agents.envs.minipacman.state import MODES
from rmc_agents.envs.random_stream import key_of_seed

GONE = 255


def game_to_fields(game: Game, capacity: int) -> dict[str, Any]:
    """The oracle's game as one lane of the engine's state, without facing and needs_reset."""

    def index(cell: tuple[int, int] | None) -> int:
        return GONE if cell is None else FREE.index(cell)

    unused = [GONE] * (capacity - len(game.ghosts))
    assert isinstance(game.random, SplitMix)
    return {
        "key": game.random.key,
        "counter": game.random.drawn,
        "level": game.level,
        "frame": game.frame,
        "timer": game.timer,
        "power": game.power,
        "food": [cell in game.food for cell in FREE],
        "food_left": len(game.food),
        "pill_cell": [index(cell) for cell in game.pills],
        "pacman_cell": index(game.pacman),
        "ghosts_left": sum(ghost["cell"] is not None for ghost in game.ghosts),
        "ghost_cell": [index(ghost["cell"]) for ghost in game.ghosts] + unused,
        "ghost_heading": [ghost["heading"] for ghost in game.ghosts] + [0] * len(unused),
    }


def stack_games(games: list[Game]) -> dict[str, np.ndarray]:
    """The engine's state for these games, none of which has ended."""
    capacity = max(len(game.ghosts) for game in games)
    lanes = [game_to_fields(game, capacity) for game in games]
    model = MiniPacmanVectorEnv(len(games)).get_state()
    fields = {name: np.array([lane[name] for lane in lanes], model[name].dtype) for name in lanes[0]}
    return {**model, **fields}


def late_game(mode: str, random: np.random.Generator, frame_cap: int) -> Game:
    """A game at a level from 1 to 9 with little food left and everything close to Pacman, so that much happens."""
    game = Game(mode, SplitMix(int(random.integers(2**63))), frame_cap)
    game.level = int(random.integers(1, 10)) - 1
    game.start_level()
    game.frame = int(random.integers(0, frame_cap))
    game.timer = int(random.integers(0, 128))
    game.power = max(0, int(random.integers(-40, 21)))
    game.pacman = FREE[random.integers(len(FREE))]
    near = [cell for cell in FREE if abs(cell[0] - game.pacman[0]) + abs(cell[1] - game.pacman[1]) <= 3]
    game.food = {near[random.integers(len(near))] for _ in range(random.integers(1, 4))}
    game.pills = [near[random.integers(len(near))] for _ in range(2)]
    if random.integers(2):
        game.pills[random.integers(2)] = None
    for ghost in game.ghosts[random.integers(len(game.ghosts) + 1) :]:
        ghost["cell"] = near[random.integers(len(near))]
    for ghost in game.ghosts[1:]:
        if random.integers(2):
            ghost["cell"] = None
    return game


class Duel:
    """Engine and oracles side by side, one oracle a lane; NEXT_STEP autoreset."""

    def __init__(self, mode: str, lanes: int, frame_cap: int) -> None:
        self.views = [MiniPacmanVectorEnv(lanes, mode, viewport, frame_cap) for viewport in (5, None)]
        self.mode, self.lanes, self.frame_cap = mode, lanes, frame_cap
        self.ended = [False] * lanes
        self.games: list[Game] = []

    def begin(self, seed: int) -> None:
        """From a seeded reset."""
        self.games = [Game(self.mode, SplitMix(int(key_of_seed(seed + i))), self.frame_cap) for i in range(self.lanes)]
        for game in self.games:
            game.reset()
        self.ended = [False] * self.lanes
        self.compare_observations([view.reset(seed=seed)[0] for view in self.views])

    def begin_late(self, seed: int) -> None:
        """From made-up states."""
        random = np.random.default_rng(seed)
        self.games = [late_game(self.mode, random, self.frame_cap) for _ in range(self.lanes)]
        for view in self.views:
            view.set_state(stack_games(self.games))
        self.ended = [False] * self.lanes

    def step(self, actions: np.ndarray) -> None:
        """One step of all lanes; compares all outputs."""
        outcomes: list[tuple[Fraction, bool, bool]] = []
        for lane, game in enumerate(self.games):
            if self.ended[lane]:
                game.reset()
                outcomes.append((Fraction(0), False, False))
            else:
                outcomes.append(game.step(int(actions[lane])))
            self.ended[lane] = outcomes[-1][1] or outcomes[-1][2]
        rewards, terminated, truncated = (np.array(column) for column in zip(*outcomes, strict=True))
        both = [view.step(actions) for view in self.views]
        self.compare_observations([got[0] for got in both])
        for got in both:
            np.testing.assert_array_equal(got[1], rewards.astype(np.float32))
            np.testing.assert_array_equal(got[2], terminated)
            np.testing.assert_array_equal(got[3], truncated)
            assert got[4]["level"].tolist() == [game.level for game in self.games]
            assert got[4]["power"].tolist() == [game.power for game in self.games]

    def compare_observations(self, observations: list[np.ndarray]) -> None:
        """All lanes, through the 5x5 window and in full, cut from one picture."""
        pictures = [game.picture(2) for game in self.games]
        corners = [game.pacman for game in self.games]
        windows = [picture[r : r + 5, c : c + 5] for picture, (r, c) in zip(pictures, corners, strict=True)]
        np.testing.assert_array_equal(observations[0], windows)
        np.testing.assert_array_equal(observations[1], np.stack(pictures)[:, 2:-2, 2:-2])

    def compare_states(self) -> None:
        """Compares the complete states, with the ghosts' headings and the random streams."""
        for view in self.views:
            state = view.get_state()
            for lane, game in enumerate(self.games):
                for name, expected in game_to_fields(game, state["ghost_cell"].shape[1]).items():
                    np.testing.assert_array_equal(state[name][lane], expected, err_msg=name)
            np.testing.assert_array_equal(state["needs_reset"], self.ended)


EVENTS = {
    "walked into a wall",
    "food eaten while staying",
    "two pills on one cell",
    "walked onto a ghost: death",
    "walked onto a ghost: eaten",
    "a ghost came: death",
    "a ghost came: eaten",
    "two deaths",
    "heading stays on Pacman's cell",
    "ghost on Pacman's cell faces a wall",
    "first heading 0 or 1",
    "random heading",
    "tie hunting",
    "tie fleeing",
    "truncated",
    "died on the last frame",
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_engine_agrees_with_the_oracle(mode: str) -> None:
    """6,560 steps a mode, 32,800 in all: seeded games, then made-up late ones, in which every event must occur."""
    duel, random = Duel(mode, lanes=8, frame_cap=200), np.random.default_rng(17)
    duel.begin(seed=100)
    for step in range(100):
        duel.step(random.integers(0, 5, duel.lanes))
        if step % 50 == 0:
            duel.compare_states()

    late, events = Duel(mode, lanes=32, frame_cap=60), set()
    for start in range(12):
        late.begin_late(start)
        for _ in range(15):
            late.step(random.integers(0, 5, late.lanes))
        late.compare_states()
        events |= {event for game in late.games for event, count in game.events.items() if count}
    expected = EVENTS | {f"level ended by {reason}" for reason in LEVEL_ENDS[mode]}
    assert expected <= events, f"never happened: {expected - events}"


@pytest.mark.parametrize("heading", [0, 1])
def test_a_ghost_that_killed_continues_with_its_first_heading(heading: int) -> None:
    """On every crossing: heading 0 leads down if that is free, heading 1 nowhere; a ghost of level 6 always moves."""
    crossings = [cell for cell in FREE if len(exits(cell)) > 2]
    games = []
    for crossing in crossings:
        game = Game("hunt", SplitMix(0))
        game.level = 5
        game.start_level()
        game.pacman = crossing
        game.ghosts = [{"cell": crossing, "heading": heading}, *({"cell": None, "heading": 2} for _ in range(2))]
        games.append(game)
    env = MiniPacmanVectorEnv(len(games), "hunt")
    env.set_state(stack_games(games))
    _, rewards, terminated, *_ = env.step(np.zeros(len(games), np.int64))
    assert terminated.all()
    state = env.get_state()
    assert (state["ghost_heading"][:, 0] == heading).all()
    for (row, column), ghost, reward in zip(crossings, state["ghost_cell"][:, 0], rewards, strict=True):
        leaves = heading == 0 and (row + 1, column) in FREE
        assert FREE[ghost] == ((row + 1, column) if leaves else (row, column))
        assert reward == (-20 if leaves else -40)  # one that stays has come to Pacman once more


def test_viewports_are_cut_from_the_same_picture() -> None:
    for viewport in (1, 3, 9, 41):
        env = MiniPacmanVectorEnv(16, viewport=viewport)
        observations, _ = env.reset(seed=4)
        for lane in range(16):
            game = Game("regular", SplitMix(int(key_of_seed(4 + lane))))
            game.reset()
            np.testing.assert_array_equal(observations[lane], game.observe(viewport))


def test_reward_table_is_the_oracles() -> None:
    for mode, rules in MODES.items():
        for name, reward in REWARDS[mode].items():
            assert getattr(rules, name) == 10 * reward


def test_free_cells_and_exits() -> None:
    counts = [len(exits(cell)) for cell in FREE]
    assert len(FREE) == 138
    assert [counts.count(number) for number in range(5)] == [0, 0, 114, 16, 8]
    assert make_maze().exit_count.tolist() == counts


def test_most_that_regular_levels_are_worth() -> None:
    """138 food, two pills, and the ghosts: the known maxima are arithmetic on the constants."""
    rules = MODES["regular"]
    worth = (138 * rules.food + 2 * rules.pill + np.array(ghosts_of_levels(8)) * rules.ghost) / 10
    assert worth.cumsum().tolist() == [147, 294, 446, 598, 755, 912, 1074, 1236]


def test_ghost_capacity_grows_and_no_ghost_is_lost() -> None:
    assert ghosts_of_levels(60) == [1 + (level - 1) // 2 for level in range(1, 61)]


def ghosts_of_levels(levels: int) -> list[int]:
    """How many ghosts the engine starts levels 1, 2, ... with: in rush, with a last pill under Pacman at every step."""
    env = MiniPacmanVectorEnv(2, mode="rush")
    env.reset(seed=3)
    ghosts = []
    for level in range(1, levels + 1):
        state = env.get_state()
        assert state["level"].tolist() == [level, level]
        assert (state["ghost_cell"][0] != GONE).sum() == state["ghosts_left"][0]
        ghosts.append(int(state["ghosts_left"][0]))
        state["pill_cell"][:, 0], state["pill_cell"][:, 1] = GONE, state["pacman_cell"]
        state["needs_reset"][:] = False  # a ghost may have come
        env.set_state(state)
        env.step([0, 0])
    return ghosts


@pytest.mark.slow
def test_random_play_has_the_known_mean_return_and_length() -> None:
    """200 episodes of the released code: mean return 9.3, about 60 steps.

    The lengths have a heavy tail: in the 0.7 % of the episodes in which the only ghost is eaten Pacman is safe, and
    plays on to the frame cap. The standard deviations are about 10 (return) and 240 (length), so the standard errors of
    the known figures are 0.7 and 17, of ours, from 2048 episodes, 0.22 and 5.3. The tolerance is three of the former.
    """
    lanes = 2048
    env = MiniPacmanVectorEnv(lanes)
    env.reset(seed=0)
    random = np.random.default_rng(0)
    returns, lengths, playing = np.zeros(lanes), np.zeros(lanes), np.ones(lanes, bool)
    while playing.any():
        _, rewards, terminated, truncated, _ = env.step(random.integers(0, 5, lanes))
        returns += rewards * playing
        lengths += playing
        playing &= ~(terminated | truncated)
    assert abs(returns.mean() - 9.3) < 3 * 0.7
    assert abs(lengths.mean() - 60) < 3 * 17
    assert 0.003 < (lengths == 3000).mean() < 0.015
