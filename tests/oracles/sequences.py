"""The answers of sequences, computed from their observations: slowly, and by other means than the package's."""

from collections.abc import Iterable
from contextlib import redirect_stdout
from fractions import Fraction
from io import StringIO

import numpy as np


def nth_farthest(shown: Iterable[np.ndarray], size: int, absent: str = "nearest") -> int:
    """The label of the n-th farthest vector from vector m, by a sequence's observations [D + 3 * V] so far; -1 where
    it is `absent`, or vector m has not been shown.
    """
    vectors: dict[int, list[Fraction]] = {}
    for observation in shown:
        label, n, m = observation[size:].reshape(3, -1)
        if label.any():
            vectors[int(np.flatnonzero(label).item())] = [Fraction(float(number)) for number in observation[:size]]
        rank, reference = int(np.flatnonzero(n).item()), int(np.flatnonzero(m).item())
    if absent == "farthest":
        rank -= len(label) - len(vectors)
    if reference not in vectors or not 0 <= rank < len(vectors):
        return -1
    distances = {
        label: sum((a - b) ** 2 for a, b in zip(vector, vectors[reference], strict=True))
        for label, vector in vectors.items()
    }
    assert len(set(distances.values())) == len(vectors)
    return sorted(distances, key=lambda label: distances[label], reverse=True)[rank]


def printed(program: str) -> int:
    """The number that a program prints, by Python itself."""
    output = StringIO()
    with redirect_stdout(output):
        exec(compile(program, "program", "exec"), {"__builtins__": {"range": range, "print": print}})
    return int(output.getvalue())


def passages(documents: list[list[int]], steps: int | None) -> list[list[int]]:
    """Documents of two tokens or more, in pieces of at most `steps` steps, each from the last token before it."""
    found = []
    for document in documents:
        rest = document
        while steps is not None and len(rest) > steps + 1:
            found.append(rest[: steps + 1])
            rest = rest[steps:]
        if len(rest) > 1:
            found.append(rest)
    return found
