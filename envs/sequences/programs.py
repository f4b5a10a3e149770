"""Program evaluation: read a program character by character, then answer what it prints, character by character."""

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
from numpy.typing import NDArray

from rmc_agents.envs.checks import check_range, checked_bool, checked_choice, checked_int
from rmc_agents.envs.task import StepArrays

from .base import NO_TARGET, Sequences
from .environment import SequenceEnv, SequenceVectorEnv
from .program_draft import CHARACTERS, END, State, make_draft
from .program_writer import (
    ADD,
    BRANCH,
    CHOOSE,
    COPY,
    DOUBLE,
    LOOP,
    MULTIPLY,
    NAME,
    REVERSE,
    SUBTRACT,
    WRITE,
    Rules,
    most_characters,
    start_lanes,
)

TASKS: dict[str, tuple[int, tuple[int, ...]]] = {
    "full": (WRITE, (ADD, SUBTRACT, MULTIPLY, NAME, LOOP, BRANCH, CHOOSE)),
    "addition": (WRITE, (ADD,)),
    "control": (WRITE, (LOOP, BRANCH, CHOOSE)),
    "copy": (COPY, ()),
    "reverse": (REVERSE, ()),
    "double": (DOUBLE, ()),
}
"""The kind of sequence of each task, and the operations of its programs."""

DEEPEST_NESTING, LONGEST_LITERAL = 6, 9  # results fit in 63 bits: 10**9 * (4 * 9 + 1)**6 < 2**63
FIRST_ASKED, NEXT_ASKED, FINISHED = range(len(CHARACTERS), len(CHARACTERS) + 3)
"""The tokens after those of `CHARACTERS`."""


class Programs(Sequences):
    """The sequences of `ProgramEnv`, in N lanes.

    Args:
        lanes: N.
        task, nesting, length, at_maxima, teacher_forcing: as for `ProgramEnv`.

    Raises:
        ValueError: for a value that is not allowed.
    """

    state: State

    def __init__(
        self,
        lanes: int,
        task: str = "full",
        nesting: int = 2,
        length: int = 5,
        at_maxima: bool = False,
        teacher_forcing: bool = False,
    ) -> None:
        nesting = checked_int("nesting", nesting, 1, DEEPEST_NESTING)
        length = checked_int("length", length, 1, LONGEST_LITERAL)
        kind, operations = TASKS[checked_choice("task", task, TASKS)]
        self.rules = Rules(
            np.array(operations, np.int64), kind, nesting, length, not checked_bool("at_maxima", at_maxima)
        )
        self.teacher_forcing = checked_bool("teacher_forcing", teacher_forcing)
        self.observation_space = MultiDiscrete([FINISHED + 1], dtype=np.uint8)
        self.action_space = Discrete(END + 1)
        self.chance = 1 / (END + 1)
        room = most_characters(nesting, length)
        self._draft = make_draft(room)
        self.state = State(
            key=np.zeros(lanes, np.uint64),
            counter=np.zeros(lanes, np.uint64),
            time=np.full(lanes, -1, np.int64),
            length=np.zeros(lanes, np.int64),
            all_right=np.ones(lanes, np.bool_),
            written=np.zeros(lanes, np.int64),
            program=np.zeros((lanes, room), np.uint8),
            answer=np.zeros((lanes, 2 * nesting * length + 1), np.uint8),
        )

    def start(self, mask: NDArray[np.bool_]) -> None:
        start_lanes(self.state, mask, self.rules, self._draft)

    def step(self, actions: NDArray[np.int64]) -> StepArrays:
        """As `Sequences`; only the whole answer is rewarded, at the end: earlier rewards would be hints."""
        observations, _, terminated, truncated = super().step(actions)
        return observations, (terminated & self.state.all_right).astype(np.float32), terminated, truncated

    def observe(self) -> NDArray[np.uint8]:
        """See `Sequences`: [N, 1]."""
        state = self.state
        lanes, answered = np.arange(len(state.time)), state.time - state.written
        tokens = state.program[lanes, np.clip(state.time, 0, state.written - 1)]
        tokens[answered == 0] = FIRST_ASKED
        later = answered > 0
        # The previous step's right answers: the token of a digit is the digit.
        tokens[later] = state.answer[later, answered[later] - 1] if self.teacher_forcing else NEXT_ASKED
        tokens[state.time == state.length] = FINISHED
        return tokens[:, None]

    def targets(self) -> NDArray[np.int64]:
        state = self.state
        answered = state.time - state.written
        targets = state.answer[np.arange(len(answered)), np.maximum(answered, 0) % state.answer.shape[1]]
        is_asked = (answered >= 0) & (state.time < state.length)
        return np.where(is_asked, targets.astype(np.int64), NO_TARGET)

    def program(self, lane: int) -> str:
        """The text of the program in a lane, or the digits to be memorised."""
        return "".join(CHARACTERS[token] for token in self.state.program[lane, : self.state.written[lane]])

    def answer(self, lane: int) -> str:
        """The right answer in a lane."""
        digits = self.state.answer[lane, : self.state.length[lane] - self.state.written[lane] - 1]
        return "".join(map(str, digits))

    def describe(self, lane: int) -> str:
        text, answered = self.program(lane), int(self.state.time[lane] - self.state.written[lane])
        if answered < 0:
            return text[: answered + len(text) + 1]
        return f"{text}\nright: {self.answer(lane)[:answered]}" + (
            "" if self.state.time[lane] == self.state.length[lane] else "?"
        )

    def action_names(self) -> list[str]:
        return [*CHARACTERS[:END], "end"]

    def check_state(self, state: State) -> None:
        super().check_state(state)
        started = state.time >= 0
        check_range("written", state.written[started], 1, state.program.shape[1])
        check_range("length", (state.length - state.written)[started], 1, state.answer.shape[1])
        check_range("program", state.program, 0, len(CHARACTERS) - 1)
        check_range("answer", state.answer, 0, END)


class ProgramEnv(SequenceEnv):
    """
    ## Description

    A program is shown, one character per step. Then the number that it prints is asked for, one character per step,
    including its end. The task is "Learning to execute" (Zaremba and Sutskever, 2014, arXiv 1410.4615), as used in
    "Relational recurrent neural networks" (Santoro et al., 2018, arXiv 1806.01822); the programs are Python:

        b=68
        for x in range(3):b-=21
        if b<37:k=52
        else:k=90
        print((k+18))

    A program has `nesting` operations, each on the result of the one before; the other numbers are literals of `length`
    digits. Factors and numbers of repetitions are at most 4 times that length. Results are taken modulo
    10**(greatest length), so that they have no sign and no more digits than the longest literals.

    | task     | a sequence is                                                                                  |
    |----------|------------------------------------------------------------------------------------------------|
    | full     | a program with sums, differences, products, variables, loops, branches, conditional expressions |
    | addition | a program with sums                                                                            |
    | control  | a program with loops, branches and conditional expressions                                     |
    | copy     | `nesting * length` digits, to be repeated                                                      |
    | reverse  | the same, to be repeated in reverse order                                                      |
    | double   | the same, to be repeated twice                                                                 |

    ## Action space

    `Discrete(11)`: the digits 0 to 9, and 10 for the answer's end. Where none is asked, the action has no effect.

    ## Observation

    `MultiDiscrete([50], uint8)`, one entry: the character (its index in `CHARACTERS`), or one of three further tokens:
    the first character of the answer is asked, the next one is asked, the sequence is finished. The agent sees its own
    answers as its previous actions; with `teacher_forcing` the right answer replaces the second token.

    ## Rewards

    1 at the end if the whole answer is right, else 0. Single characters are not rewarded: an agent that sees its reward
    would learn from it whether the character was right, which is more than its own predictions.

    ## Termination

    After the end of the answer. `info["target"]` is the right action where one is asked, else -1;
    `info["is_success"]` says at the end whether the whole answer was right.

    ## Arguments

    - `task`: "full" (default), "addition", "control", "copy", "reverse" or "double"
    - `nesting`: the greatest (default 2), 1 to 6
    - `length`: the greatest (default 5), 1 to 9
    - `at_maxima`: nesting and length are always the greatest, as in evaluation; else (default) each is drawn uniformly
      from 1 to the greatest for every sequence
    - `teacher_forcing`: see above (default False)
    - `render_mode`: "rgb_array" or "ansi"

    ## Registered configurations

    - `Program-v0`, also by `gymnasium.make("rmc_agents.envs:Program-v0", task="control", at_maxima=True)`
    """

    def __init__(
        self,
        task: str = "full",
        nesting: int = 2,
        length: int = 5,
        at_maxima: bool = False,
        teacher_forcing: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """See the class; raises ValueError for a value that is not allowed."""
        super().__init__(Programs(1, task, nesting, length, at_maxima, teacher_forcing), render_mode)


class ProgramVectorEnv(SequenceVectorEnv):
    """Many lanes of `ProgramEnv`, with the same arguments."""

    task = Programs
    lanes: Programs
