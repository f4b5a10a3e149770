"""BoxWorld's rules, for many independent rooms (lanes) at once.

The rules are those of "Relational deep reinforcement learning" (Zambaldi et al., 2018, arXiv 1806.01830), seen through
a window as in "Relational recurrent neural networks" (Santoro et al., 2018, arXiv 1806.01822). The state of all lanes
is one `State` of arrays; compiled functions advance it lane by lane.
"""

import numpy as np
from numpy.typing import NDArray

from rmc_agents.envs.random_stream import compiled, inlined

from .levels import start_level
from .palette import PALETTE
from .state import AGENT, FLOOR, GEM, WALL, Rules, State

DOWN, RIGHT = np.array([-1, 1, 0, 0]), np.array([0, 0, -1, 1])
"""One step of each action: up, down, left, right."""

GEM_REWARD, BOX_REWARD, DISTRACTOR_REWARD = 10, 1, -1


@inlined
def _start_episode(state: State, rules: Rules, lane: int) -> None:
    start_level(state, rules, lane)
    state.held[lane] = FLOOR
    state.boxes_opened[lane] = 0
    state.step_count[lane] = 0
    state.is_success[lane] = False
    state.needs_reset[lane] = False


@inlined
def _has_thing(state: State, rules: Rules, lane: int, row: int, column: int) -> bool:
    return 0 <= column < rules.room_size and state.board[lane, row, column] != FLOOR


@inlined
def _open_box(state: State, lane: int, row: int, column: int) -> tuple[int, bool]:
    """Opens the box with the lock here: the reward, and whether it is a distractor, which ends the episode."""
    state.board[lane, row, column] = FLOOR
    state.held[lane] = FLOOR
    if state.board[lane, row, column - 1] != state.path[lane, state.boxes_opened[lane] + 1]:
        return DISTRACTOR_REWARD, True
    state.boxes_opened[lane] += 1
    return BOX_REWARD, False


@inlined
def _take(state: State, lane: int, row: int, column: int) -> tuple[int, bool]:
    """Takes the loose key here, or the gem, which ends the episode."""
    thing = state.board[lane, row, column]
    state.board[lane, row, column] = FLOOR
    if thing == GEM:
        state.is_success[lane] = True
        return GEM_REWARD, True
    state.held[lane] = thing
    return 0, False


@inlined
def _advance(state: State, rules: Rules, lane: int, action: int) -> tuple[int, bool]:
    """One step of one lane: its reward, and whether the episode terminates."""
    state.step_count[lane] += 1
    row, column = np.int64(state.row[lane]) + DOWN[action], np.int64(state.column[lane]) + RIGHT[action]
    if not (0 <= row < rules.room_size and 0 <= column < rules.room_size):
        return 0, False
    reward, ended = 0, False
    if state.board[lane, row, column] != FLOOR:
        if _has_thing(state, rules, lane, row, column + 1):  # the content of a locked box
            return 0, False
        if _has_thing(state, rules, lane, row, column - 1):
            if state.held[lane] != state.board[lane, row, column]:
                return 0, False
            reward, ended = _open_box(state, lane, row, column)
        else:
            reward, ended = _take(state, lane, row, column)
    state.row[lane] = row
    state.column[lane] = column
    return reward, ended


@inlined
def _observe(state: State, rules: Rules, lane: int, pixels: NDArray[np.uint8]) -> None:
    """Writes one lane's observation into `pixels` [N, side + 1, side, 3]."""
    size, side = rules.room_size, pixels.shape[2]
    agent_row, agent_column = np.int64(state.row[lane]), np.int64(state.column[lane])
    top, left = 0, 0
    if rules.viewport > 0:
        top, left = agent_row - side // 2, agent_column - side // 2
    held = np.int64(state.held[lane])
    for column in range(side):
        _paint(pixels, lane, 0, column, WALL if held == FLOOR else held)
    for row in range(side):
        for column in range(side):
            r, c = top + row, left + column
            is_inside = 0 <= r < size and 0 <= c < size
            _paint(pixels, lane, row + 1, column, np.int64(state.board[lane, r, c]) if is_inside else WALL)
    _paint(pixels, lane, agent_row - top + 1, agent_column - left, AGENT)


@inlined
def _paint(pixels: NDArray[np.uint8], lane: int, row: int, column: int, cell: int) -> None:
    for channel in range(3):
        pixels[lane, row, column, channel] = PALETTE[cell, channel]


@compiled
def start_lanes(state: State, rules: Rules, mask: NDArray[np.bool_]) -> None:
    """Starts a new episode in every lane with mask [N] True, and continues its random stream."""
    for lane in range(len(mask)):
        if mask[lane]:
            _start_episode(state, rules, lane)


@compiled
def observe_lanes(state: State, rules: Rules, pixels: NDArray[np.uint8]) -> None:
    """Writes all observations into `pixels`, uint8 [N, side + 1, side, 3]."""
    for lane in range(len(pixels)):
        _observe(state, rules, lane, pixels)


@compiled
def step_lanes(
    state: State,
    rules: Rules,
    actions: NDArray[np.int64],
    pixels: NDArray[np.uint8],
    rewards: NDArray[np.float32],
    terminated: NDArray[np.bool_],
    truncated: NDArray[np.bool_],
) -> None:
    """Advances all lanes; one that `needs_reset` starts its next episode instead and ignores its action.

    Args:
        state: changed in place.
        rules: see `Rules`.
        actions: [N], 0..3, not checked here.
        pixels, rewards, terminated, truncated: [N, side + 1, side, 3] and [N], written in full.
    """
    for lane in range(len(actions)):
        reward, ended, capped = 0, False, False
        if state.needs_reset[lane]:
            _start_episode(state, rules, lane)
        else:
            reward, ended = _advance(state, rules, lane, actions[lane])
            capped = state.step_count[lane] >= rules.max_steps and not ended
            state.needs_reset[lane] = ended or capped
        rewards[lane] = reward
        terminated[lane] = ended
        truncated[lane] = capped
        _observe(state, rules, lane, pixels)
