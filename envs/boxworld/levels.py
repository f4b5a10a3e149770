"""BoxWorld's levels: a chain of boxes to the gem, branches that lead nowhere, and a place for each thing.

A level of solution length L has the colours c[0], ..., c[L-1]. A loose key has the colour c[0]. Box i of the solution
has a lock of the colour c[i] and holds the key c[i+1], the last one the gem. A distractor has a lock of one of these
colours, too, and holds a key of a colour that no lock has. All keys differ in colour. A key is used up by the box that
it opens, so there is exactly one sequence of boxes that leads to the gem.

The place of a thing is uniform among those where it touches no earlier thing, not even at a corner. So the agent can
walk around all things, and reach every lock.

The order of a level's draws (see `random_stream`); a draw of a colour or place is repeated until it is allowed:

- integer(largest - smallest solution length + 1), the same for the number of distractors;
- for each key of the solution its colour, 1 + integer(20), not used before;
- for each box of the solution its place, the row integer(S) and then the column of its left cell integer(S - 1);
- for each distractor its colour, then the key of the solution that opens it, integer(L), or integer(L - 1) without
  distractors for the gem's key, then its place;
- the loose key's place, integer(S) twice; the agent's, integer(S) twice: any floor.
"""

from rmc_agents.envs.random_stream import inlined, integer, subroutine

from .state import COLOURS, FLOOR, GEM, Rules, State


@subroutine
def start_level(state: State, rules: Rules, lane: int) -> None:
    """Draws a lane's next level from its random stream."""
    for row in range(rules.room_size):
        for column in range(rules.room_size):
            state.board[lane, row, column] = FLOOR
    shortest, fewest = rules.min_solution_length, rules.min_distractors
    length = shortest + integer(state, lane, rules.max_solution_length - shortest + 1)
    distractors = fewest + integer(state, lane, rules.max_distractors - fewest + 1)
    branches = length if rules.gem_distractors or length == 1 else length - 1
    used = _draw_path(state, lane, length)
    for box in range(length):
        _place_box(state, rules, lane, state.path[lane, box + 1], state.path[lane, box])
    for _ in range(distractors):
        content = _unused_colour(state, lane, used)
        used |= 1 << content
        _place_box(state, rules, lane, content, state.path[lane, integer(state, lane, branches)])
    _place_key(state, rules, lane)
    _place_agent(state, rules, lane)
    state.solution_length[lane] = length
    state.num_distractors[lane] = distractors


@inlined
def _draw_path(state: State, lane: int, length: int) -> int:
    """Colours of the keys of the solution; the set of them, as bits."""
    used = 0
    for place in range(state.path.shape[1]):
        state.path[lane, place] = FLOOR
    for place in range(length):
        colour = _unused_colour(state, lane, used)
        used |= 1 << colour
        state.path[lane, place] = colour
    state.path[lane, length] = GEM
    return used


@inlined
def _unused_colour(state: State, lane: int, used: int) -> int:
    colour = 1 + integer(state, lane, COLOURS)
    while used >> colour & 1:
        colour = 1 + integer(state, lane, COLOURS)
    return colour


@subroutine
def _place_box(state: State, rules: Rules, lane: int, content: int, lock: int) -> None:
    while True:
        row = integer(state, lane, rules.room_size)
        column = integer(state, lane, rules.room_size - 1)
        if _is_clear(state, rules, lane, row, column, 2):
            state.board[lane, row, column] = content
            state.board[lane, row, column + 1] = lock
            return


@inlined
def _place_key(state: State, rules: Rules, lane: int) -> None:
    while True:
        row, column = integer(state, lane, rules.room_size), integer(state, lane, rules.room_size)
        if _is_clear(state, rules, lane, row, column, 1):
            state.board[lane, row, column] = state.path[lane, 0]
            return


@inlined
def _place_agent(state: State, rules: Rules, lane: int) -> None:
    while True:
        row, column = integer(state, lane, rules.room_size), integer(state, lane, rules.room_size)
        if state.board[lane, row, column] == FLOOR:
            state.row[lane] = row
            state.column[lane] = column
            return


@inlined
def _is_clear(state: State, rules: Rules, lane: int, row: int, column: int, width: int) -> bool:
    """Whether a thing of this width and the cells around it lie on floor or outside the room."""
    for r in range(max(row - 1, 0), min(row + 2, rules.room_size)):
        for c in range(max(column - 1, 0), min(column + width + 1, rules.room_size)):
            if state.board[lane, r, c] != FLOOR:
                return False
    return True
