"""Writes Python programs that print one number, and digits to be memorised, for many lanes at once.

A program begins as one literal and grows by operations, each around the one before: "(...+12)", or a statement that
gives the value a name.

The order of a program's random draws (see `random_stream`): integer() for the nesting and for the length, if they
vary; those of the first literal; then, for each operation, integer() for its kind and what its function below draws.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rmc_agents.envs.random_stream import compiled, integer, subroutine

from .program_draft import (
    CHARACTERS,
    END,
    Draft,
    State,
    append,
    append_all,
    append_number,
    clear,
    encode,
    flush,
    prepend,
    prepend_all,
    prepend_number,
)

ADD, SUBTRACT, MULTIPLY, NAME, LOOP, BRANCH, CHOOSE = range(7)
"""Operations on an expression E: (E+1), (E-1), (E*2), with sides swapped too; a=E with (a+1) or (a-1); `for`; `if`; and
a conditional expression."""

WRITE, COPY, REVERSE, DOUBLE = range(4)
"""Kinds of sequences: a program and its result, or digits to be repeated, reversed, or repeated twice."""

LETTERS, LOOP_VARIABLE = 26, ord("x") - ord("a")  # loops count in x; no other variable has this name

_A = CHARACTERS.index("a")
_PLUS, _MINUS, _TIMES, _EQUALS, _LESS, _GREATER, _OPEN, _CLOSE, _COLON, _NEWLINE = encode("+-*=<>():\n").tolist()
_FOR, _IF, _ELSE, _PRINT = encode("for x in range("), encode("if "), encode("else:"), encode("print(")
_THEN, _OTHERWISE = encode(" if "), encode(" else ")


class Rules(NamedTuple):
    """Settings that all lanes share."""

    operations: NDArray[np.int64]  # [K]: the operations a program may have
    task: int  # WRITE, COPY, REVERSE or DOUBLE
    nesting: int  # the greatest number of operations
    length: int  # the greatest number of digits of a literal
    is_mixed: bool  # whether both vary, uniform from 1


def most_characters(nesting: int, length: int) -> int:
    """Room for the longest program, or for the digits to be memorised, with literals of at most `length` digits."""
    loop = len("a=\nfor x in range(00):a+=\na") + length
    branch = len("if <:a=\nelse:a=\na") + 3 * length
    choose = len("( if < else )") + 3 * length
    return length + nesting * max(loop, branch, choose) + len("print()\n")


@subroutine
def _append_assignment(draft: Draft, letter: int, number: int) -> None:
    append(draft, letter)
    append(draft, _EQUALS)
    append_number(draft, number)
    append(draft, _NEWLINE)


@subroutine
def _literal(state: State, lane: int, length: int) -> int:
    """A number of `length` digits."""
    if length == 1:
        return integer(state, lane, 10)
    least = 1
    for _ in range(length - 1):
        least *= 10
    return least + integer(state, lane, 9 * least)


@subroutine
def _factor(state: State, lane: int, length: int) -> int:
    """A factor or a number of repetitions: small, so that results stay in range (Zaremba and Sutskever, 2014)."""
    return 1 + integer(state, lane, 4 * length)


@subroutine
def _new_letter(state: State, lane: int, draft: Draft) -> int:
    letter = LOOP_VARIABLE
    while draft.letters[0] >> letter & 1:
        letter = integer(state, lane, LETTERS)
    draft.letters[0] |= 1 << letter
    return _A + letter


@subroutine
def _combine(state: State, lane: int, draft: Draft, value: int, operation: int, other: int) -> int:
    """(E+other) or (other+E), likewise with - and *; draws the side and returns the new value."""
    sign = _PLUS if operation == ADD else _MINUS if operation == SUBTRACT else _TIMES
    is_left = integer(state, lane, 2) == 0
    if is_left:
        prepend(draft, _OPEN)
        append(draft, sign)
        append_number(draft, other)
    else:
        prepend(draft, sign)
        prepend_number(draft, other)
        prepend(draft, _OPEN)
    append(draft, _CLOSE)
    if operation == ADD:
        return value + other
    if operation == MULTIPLY:
        return value * other
    return value - other if is_left else other - value


@subroutine
def _name(state: State, lane: int, draft: Draft) -> int:
    """The line a=E; draws the letter and returns it. The expression is empty after it."""
    letter = _new_letter(state, lane, draft)
    prepend(draft, _EQUALS)
    prepend(draft, letter)
    append(draft, _NEWLINE)
    flush(state, lane, draft)
    return letter


@subroutine
def _loop(state: State, lane: int, draft: Draft, value: int, length: int) -> int:
    """a=E, `for x in range(n):a+=b`, or a-=b; draws the letter, n, b and the sign; returns the new value."""
    letter = _name(state, lane, draft)
    repeats, other = _factor(state, lane, length), _literal(state, lane, length)
    is_sum = integer(state, lane, 2) == 0
    append_all(draft, _FOR)
    append_number(draft, repeats)
    append(draft, _CLOSE)
    append(draft, _COLON)
    append(draft, letter)
    append(draft, _PLUS if is_sum else _MINUS)
    append(draft, _EQUALS)
    append_number(draft, other)
    append(draft, _NEWLINE)
    flush(state, lane, draft)
    append(draft, letter)
    return value + repeats * other if is_sum else value - repeats * other


@subroutine
def _compare(state: State, lane: int, draft: Draft, value: int, other: int) -> bool:
    """E<other or E>other; draws which, and returns whether it is true."""
    is_less = integer(state, lane, 2) == 0
    append(draft, _LESS if is_less else _GREATER)
    append_number(draft, other)
    return value < other if is_less else value > other


@subroutine
def _branch(state: State, lane: int, draft: Draft, value: int, length: int) -> int:
    """`if E<b:a=c`, `else:a=d`; draws the letter, b, c, d and the comparison; returns the new value."""
    letter = _new_letter(state, lane, draft)
    b, c, d = _literal(state, lane, length), _literal(state, lane, length), _literal(state, lane, length)
    prepend_all(draft, _IF)
    is_true = _compare(state, lane, draft, value, b)
    append(draft, _COLON)
    _append_assignment(draft, letter, c)
    append_all(draft, _ELSE)
    _append_assignment(draft, letter, d)
    flush(state, lane, draft)
    append(draft, letter)
    return c if is_true else d


@subroutine
def _choose(state: State, lane: int, draft: Draft, value: int, length: int) -> int:
    """(E if b<c else d) or (b if E<c else d); draws which, b, c, d and the comparison; returns the new value."""
    is_compared = integer(state, lane, 2) == 0
    b, c, d = _literal(state, lane, length), _literal(state, lane, length), _literal(state, lane, length)
    if is_compared:
        prepend_all(draft, _THEN)
        prepend_number(draft, b)
    else:
        append_all(draft, _THEN)
        append_number(draft, b)
    is_true = _compare(state, lane, draft, value if is_compared else b, c)
    append_all(draft, _OTHERWISE)
    append_number(draft, d)
    prepend(draft, _OPEN)
    append(draft, _CLOSE)
    if not is_true:
        return d
    return b if is_compared else value


@subroutine
def _apply(state: State, lane: int, draft: Draft, value: int, operation: int, length: int) -> int:
    """Puts an operation around the expression; returns the new value."""
    if operation == LOOP:
        return _loop(state, lane, draft, value, length)
    if operation == BRANCH:
        return _branch(state, lane, draft, value, length)
    if operation == CHOOSE:
        return _choose(state, lane, draft, value, length)
    if operation == MULTIPLY:
        return _combine(state, lane, draft, value, MULTIPLY, _factor(state, lane, length))
    if operation == NAME:
        append(draft, _name(state, lane, draft))
        operation = ADD if integer(state, lane, 2) == 0 else SUBTRACT
    return _combine(state, lane, draft, value, operation, _literal(state, lane, length))


@subroutine
def _write_program(state: State, lane: int, rules: Rules, draft: Draft, nesting: int, length: int) -> None:
    """Writes a program and its answer, the printed number modulo 10**rules.length."""
    clear(draft)
    draft.letters[0] = 1 << LOOP_VARIABLE
    value = _literal(state, lane, length)
    append_number(draft, value)
    for _ in range(nesting):
        operation = rules.operations[integer(state, lane, len(rules.operations))]
        value = _apply(state, lane, draft, value, operation, length)
    prepend_all(draft, _PRINT)
    append(draft, _CLOSE)
    append(draft, _NEWLINE)
    flush(state, lane, draft)
    value %= 10**rules.length
    append_number(draft, value)
    digits = draft.last[0] - draft.first[0]
    for i in range(digits):
        state.answer[lane, i] = draft.tokens[draft.first[0] + i]
    _finish(state, lane, digits)


@subroutine
def _finish(state: State, lane: int, digits: int) -> None:
    state.answer[lane, digits] = END
    state.length[lane] = state.written[lane] + digits + 1


@subroutine
def _write_digits(state: State, lane: int, task: int, count: int) -> None:
    """Writes `count` digits and a newline, and the answer: the digits repeated, reversed, or repeated twice."""
    for i in range(count):
        digit = integer(state, lane, 10)
        state.program[lane, i] = digit
        state.answer[lane, count - 1 - i if task == REVERSE else i] = digit
        if task == DOUBLE:
            state.answer[lane, count + i] = digit
    state.program[lane, count] = _NEWLINE
    state.written[lane] = count + 1
    _finish(state, lane, 2 * count if task == DOUBLE else count)


@compiled
def start_lanes(state: State, mask: NDArray[np.bool_], rules: Rules, draft: Draft) -> None:
    """Starts a sequence in every lane of `mask` [N]; `draft` is scratch space."""
    for lane in range(len(mask)):
        if mask[lane]:
            nesting, length = rules.nesting, rules.length
            if rules.is_mixed:
                nesting, length = 1 + integer(state, lane, nesting), 1 + integer(state, lane, length)
            state.time[lane], state.all_right[lane], state.written[lane] = 0, True, 0
            if rules.task == WRITE:
                _write_program(state, lane, rules, draft, nesting, length)
            else:
                _write_digits(state, lane, rules.task, nesting * length)
