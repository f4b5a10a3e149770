"""Language modelling: read a text token by token and predict the next token."""

import math
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from rmc_agents.envs.checks import check_range, checked_choice, checked_int
from rmc_agents.envs.token_space import Tokens

from .base import NO_TARGET, Sequences
from .corpus import load_corpus, part_of, passages
from .environment import SequenceEnv, SequenceVectorEnv

PARTS = ("train", "heldout", "all")
UNITS = ("bytes", "words")
HELD_OUT = 0.1
MAX_WORDS = 2**24
GOLDEN_RATIO = 0x9E3779B97F4A7C15  # its fraction, times 2**64


class State(NamedTuple):
    """Everything about N lanes."""

    time: NDArray[np.int64]  # [N]: see `Sequences`
    length: NDArray[np.int64]  # [N]: see `Sequences`
    all_right: NDArray[np.bool_]  # [N]: see `Sequences`
    begin: NDArray[np.int64]  # [N]: index of the first token of this sequence
    next_begin: NDArray[np.int64]  # [N]: index of the first token of the next sequence
    next_passage: NDArray[np.int64]  # [N]: the passage of that token


class Text(Sequences):
    """The sequences of `TextEnv`, in N lanes.

    Args:
        lanes: N.
        path, unit, part, held_out, vocabulary, vocabulary_size, steps: as for `TextEnv`.

    Attributes:
        vocabulary: the meaning of tokens; it has `encode` and `decode` for texts.

    Raises:
        ValueError: for a value that is not allowed, and for a text that is missing, empty, too short or unreadable.
    """

    state: State
    is_answer_whole: ClassVar[bool] = False

    def __init__(
        self,
        lanes: int,
        path: str | Path,
        unit: str = "bytes",
        part: str = "train",
        held_out: float = HELD_OUT,
        vocabulary: str | Path | None = None,
        vocabulary_size: int | None = None,
        steps: int | None = None,
    ) -> None:
        checked_choice("unit", unit, UNITS)
        checked_choice("part", part, PARTS)
        if not isinstance(held_out, int | float) or not 0 < held_out < 1:
            raise ValueError(f"held_out: expected a number between 0 and 1, got {held_out!r}")
        for name, value in (("vocabulary", vocabulary), ("vocabulary_size", vocabulary_size)):
            if unit == "bytes" and value is not None:
                raise ValueError(f"{name}: expected none with bytes; it is for the unit words")
        if vocabulary is not None and vocabulary_size is not None:
            raise ValueError("vocabulary_size: expected none with a vocabulary, whose size is fixed")
        if vocabulary_size is not None:
            checked_int("vocabulary_size", vocabulary_size, 2, MAX_WORDS)
        self.steps = None if steps is None else checked_int("steps", steps, 1, 2**31)
        corpus = load_corpus(path, unit, vocabulary, vocabulary_size)
        self.path, self.vocabulary = path, corpus.vocabulary
        self.part, self.held_out = part, held_out
        self.tokens, documents = part_of(corpus, part, held_out)
        self._first, self._last = passages(documents, self.steps)
        if not len(self._first):
            got = f"{len(self.tokens)} in {len(documents) - 1}"
            raise ValueError(f"text {path}: expected a {part} part with a document of at least 2 tokens, got {got}")
        spread = len(self._first) * GOLDEN_RATIO >> 64
        self._stride = next(n for n in range(max(spread, 1), 2**63) if math.gcd(n, len(self._first)) == 1)
        self.observation_space = Tokens(np.array([self.vocabulary.size]))
        self.action_space = Discrete(self.vocabulary.size)
        self.chance = 1 / self.vocabulary.size
        zeros = {name: np.zeros(lanes, np.int64) for name in ("length", "begin", "next_begin", "next_passage")}
        self.state = State(time=np.full(lanes, -1, np.int64), all_right=np.ones(lanes, np.bool_), **zeros)

    def seed(self, lane: int, seed: int) -> None:
        """Moves a lane to a place in the text. Consecutive seeds are spread evenly; seed 0 is the beginning.

        With `steps` it is the beginning of a passage; as many consecutive seeds as there are passages have each once.
        """
        if self.steps is not None:
            passage = seed * self._stride % len(self._first)
            self.state.next_passage[lane], self.state.next_begin[lane] = passage, self._first[passage]
            return
        share = seed * GOLDEN_RATIO % 2**64
        place = share * len(self.tokens) >> 64
        passage = max(int(np.searchsorted(self._first, place, side="right")) - 1, 0)
        begins_within = self._first[passage] <= place < self._last[passage]
        self.state.next_passage[lane] = passage
        self.state.next_begin[lane] = place if begins_within else self._first[passage]

    def start(self, mask: NDArray[np.bool_]) -> None:
        """Continues with the next passage; the first passage follows the last."""
        state = self.state
        passage = state.next_passage[mask]
        state.begin[mask] = state.next_begin[mask]
        state.length[mask] = self._last[passage] - state.next_begin[mask]
        state.time[mask], state.all_right[mask] = 0, True
        state.next_passage[mask] = (passage + 1) % len(self._first)
        state.next_begin[mask] = self._first[state.next_passage[mask]]

    def observe(self) -> NDArray[np.int32]:
        """See `Sequences`: [N, 1]."""
        return self.tokens[self.state.begin + self.state.time].astype(np.int32)[:, None]

    def targets(self) -> NDArray[np.int64]:
        state = self.state
        is_last = state.time == state.length
        following = self.tokens[state.begin + state.time + ~is_last]
        return np.where(is_last, NO_TARGET, following.astype(np.int64))

    def describe(self, lane: int) -> str:
        """See `Sequences`: the text read last."""
        begin = int(self.state.begin[lane])
        end = begin + int(self.state.time[lane]) + 1
        return self.vocabulary.decode(self.tokens[max(begin, end - 500) : end].tolist())

    def action_names(self) -> list[str]:
        return [self.vocabulary.name(token) for token in range(self.vocabulary.size)]

    def vocabulary_fingerprint(self) -> str:
        return self.vocabulary.fingerprint

    def num_episodes(self) -> int | None:
        """See `Sequences`: the passages."""
        return None if self.steps is None else len(self._first)

    def check_unroll(self, unroll_length: int, lanes: int) -> None:
        if len(self.tokens) < lanes * unroll_length:
            raise ValueError(
                f"text {self.path}: expected at least {lanes * unroll_length} tokens for {lanes} lanes of "
                f"{unroll_length} steps, got {len(self.tokens)}; take fewer lanes or shorter unrolls"
            )

    def check_state(self, state: State) -> None:
        super().check_state(state)
        check_range("begin", state.begin, 0, None)
        check_range("begin", (state.begin + state.length), 0, len(self.tokens) - 1)
        check_range("next_passage", state.next_passage, 0, len(self._first) - 1)
        begun = state.time >= 0
        check_range("next_begin", (state.next_begin - self._first[state.next_passage])[begun], 0, None)
        check_range("next_begin", (self._last[state.next_passage] - state.next_begin)[begun], 1, None)


class TextEnv(SequenceEnv):
    """
    ## Description

    A text is read token by token, and each step asks for the next token. A lane reads a document to its end, then the
    next one, and the first one after the last: a stream. Where a lane begins depends on its seed. Lanes are spread
    evenly over the text, however many there are; seed 0 is the beginning of the text. With `steps`, lanes begin with
    passages, and as many consecutive seeds as passages begin with each of them once.

    ## Action space

    `Discrete(vocabulary size)`: the next token; 256 for bytes.

    ## Observation

    `Tokens([vocabulary size])`, a `MultiDiscrete` of int32 with one entry: the token.

    ## Rewards

    1 for the right token, else 0.

    ## Termination

    At the last token of a document, which asks nothing. `info["target"]` is the next token, and -1 there.

    ## Arguments

    - `path`: a file, which is one document; a folder, whose files are documents, hidden ones left out; or a pattern
      such as "books/**/*.txt"
    - `unit`: "bytes" (default), for any file, or "words": UTF-8 split at whitespace; a newline is a word too
    - `part`: "train" (default), "heldout" or "all"
    - `held_out`: the share of the text, at its end, that is held out from training (default 0.1)
    - `vocabulary`: for words, a file with `Words.to_json`, so that tokens mean what they meant in another text; None
      (default): the words of the whole text
    - `vocabulary_size`: for words, how many to keep: "<unk>", which stands for all others, and the most frequent ones;
      None (default): all
    - `steps`: documents are split into passages of at most this many steps, each an episode; None (default): a document
      is one passage
    - `render_mode`: "rgb_array" or "ansi"

    ## Registered configurations

    - `Text-v0`, by `gymnasium.make("rmc_agents.envs:Text-v0", path="book.txt")`
    """

    def __init__(
        self,
        path: str | Path,
        render_mode: str | None = None,
        *,
        unit: str = "bytes",
        part: str = "train",
        held_out: float = HELD_OUT,
        vocabulary: str | Path | None = None,
        vocabulary_size: int | None = None,
        steps: int | None = None,
    ) -> None:
        """See the class; raises ValueError for a value that is not allowed."""
        super().__init__(Text(1, path, unit, part, held_out, vocabulary, vocabulary_size, steps), render_mode)


class TextVectorEnv(SequenceVectorEnv):
    """Many lanes of `TextEnv`, with the same arguments."""

    task = Text
