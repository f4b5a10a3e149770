"""Programs: their answers against Python's, what they consist of, and how the answer is asked for."""

import re

import numpy as np
import pytest

from oracles.sequences import printed
from rmc_agents.envs.sequences.program_draft import CHARACTERS, END
from rmc_agents.envs.sequences.program_writer import most_characters
from rmc_agents.envs.sequences.programs import FINISHED, FIRST_ASKED, NEXT_ASKED, Programs, ProgramVectorEnv

MEMORISED = {"copy": lambda digits: digits, "reverse": lambda digits: digits[::-1], "double": lambda digits: 2 * digits}
FOUND_IN = {
    "full": ("+", "-", "*", "for", "if", "else:", "+=", "-=", "<", ">"),
    "addition": ("+",),
    "control": ("for", "if", "else:", "+=", "-=", "<", ">"),
}


def started(lanes: int, task: str, nesting: int, length: int, at_maxima: bool = True) -> Programs:
    programs = Programs(lanes, task, nesting, length, at_maxima)
    programs.reset(np.ones(lanes, bool), range(lanes), np.random.default_rng(0))
    return programs


@pytest.mark.parametrize("task", FOUND_IN)
@pytest.mark.parametrize(("nesting", "length", "at_maxima"), [(2, 5, True), (6, 9, True), (1, 1, True), (4, 3, False)])
def test_programs_print_what_is_asked_for(task: str, nesting: int, length: int, at_maxima: bool) -> None:
    programs = started(400, task, nesting, length, at_maxima)
    texts = [programs.program(lane) for lane in range(400)]
    for lane, text in enumerate(texts):
        assert programs.answer(lane) == str(printed(text) % 10**length), text
    if nesting > 1:
        assert all(any(sign in text for text in texts) for sign in FOUND_IN[task])
    if task == "addition":
        assert not re.search(r"[^0-9+()print\n]", "".join(texts))


@pytest.mark.parametrize("task", MEMORISED)
def test_digits_are_memorised(task: str) -> None:
    programs = started(200, task, 3, 4)
    for lane in range(200):
        text = programs.program(lane)
        assert re.fullmatch(r"[0-9]{12}\n", text)
        assert programs.answer(lane) == MEMORISED[task](text[:-1])
    lengths = {len(text) - 1 for text in map(started(200, task, 2, 3, False).program, range(200))}
    assert lengths == {1, 2, 3, 4, 6}


def test_nesting_and_length_are_uniform_up_to_the_greatest_or_the_greatest() -> None:
    lanes, nesting, length = 6000, 3, 4
    programs = started(lanes, "addition", nesting, length, at_maxima=False)
    counts = np.zeros((nesting, length))
    for lane in range(lanes):
        literals = re.findall(r"[0-9]+", programs.program(lane))
        assert len({len(literal) for literal in literals}) == 1
        counts[len(literals) - 2, len(literals[0]) - 1] += 1
    np.testing.assert_allclose(counts / lanes, 1 / counts.size, atol=0.012)
    programs = started(100, "addition", nesting, length)
    for lane in range(100):
        assert [len(literal) for literal in re.findall(r"[0-9]+", programs.program(lane))] == [4] * 4


@pytest.mark.parametrize(("nesting", "length"), [(1, 3), (1, 9), (2, 5)])
def test_there_is_room_for_the_longest_program_and_no_more(nesting: int, length: int) -> None:
    programs = started(4000, "control", nesting, length)
    assert programs.state.written.max() == most_characters(nesting, length) == programs.state.program.shape[1]


def test_variables_have_names_of_their_own() -> None:
    programs = started(500, "control", 6, 1)
    for lane in range(500):
        lines = programs.program(lane).splitlines()
        assigned = [line[0] for line in lines if re.match(r"[a-z]=", line)]
        assigned += [found[1] for line in lines if (found := re.match(r"if .*:([a-z])=", line))]
        assert len(set(assigned)) == len(assigned)
        assert "x" not in assigned


@pytest.mark.parametrize("teacher_forcing", [False, True])
def test_the_program_is_read_and_then_the_answer_asked_for(teacher_forcing: bool) -> None:
    env = ProgramVectorEnv(6, task="full", teacher_forcing=teacher_forcing)
    obs, infos = env.reset(seed=4)
    assert isinstance(env.lanes, Programs)
    expected = []
    for lane in range(6):
        read = [CHARACTERS.index(character) for character in env.lanes.program(lane)]
        digits = [int(digit) for digit in env.lanes.answer(lane)]
        asked = [FIRST_ASKED, *(digits if teacher_forcing else [NEXT_ASKED] * len(digits))]
        expected.append((read + asked + [FINISHED], [-1] * len(read) + digits + [END, -1]))
    running = np.ones(6, bool)
    step = 0
    while running.any():
        for lane in np.flatnonzero(running):
            shown, targets = expected[lane]
            assert (obs[lane].tolist(), infos["target"][lane]) == ([shown[step]], targets[step])
        obs, _, ended, _, infos = env.step(np.zeros(6, int))
        step += 1
        for lane in np.flatnonzero(running & ended):
            assert (obs[lane].tolist(), infos["target"][lane], step) == ([FINISHED], -1, len(expected[lane][0]) - 1)
            assert env.lanes.describe(lane) == f"{env.lanes.program(lane)}\nright: {env.lanes.answer(lane)}"
        running &= ~ended


@pytest.mark.parametrize(("name", "value"), [("written", [0, 5]), ("written", [9999, 5])])
def test_a_state_out_of_bounds_is_refused(name: str, value: list[int]) -> None:
    env = ProgramVectorEnv(2)
    env.reset(seed=0)
    with pytest.raises(ValueError, match=rf"state field '{name}': expected .* got"):
        env.set_state({**env.get_state(), name: np.array(value)})
