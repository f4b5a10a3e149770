"""The meaning of a text's tokens: bytes or words."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

UNKNOWN = "<unk>"
"""If the vocabulary has this word, it stands for every word that is not in the vocabulary."""

LINE_END = "\n"
BYTES = 256


class Bytes:
    """Every byte is a token, so that any file can be read."""

    size = BYTES
    fingerprint = ""

    def encode(self, text: bytes) -> NDArray[np.uint8]:
        """The tokens of a text, [L]."""
        return np.frombuffer(text, np.uint8)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; bytes that are not UTF-8 become U+FFFD."""
        return bytes(tokens).decode(errors="replace")

    def name(self, token: int) -> str:
        """A byte as in a Python literal: a, \\n, \\xc3."""
        return repr(bytes([token]))[2:-1]


class Words:
    """Words, split at whitespace; a newline is a word too.

    Args:
        words: without repetition; a word's index is its token.

    Raises:
        ValueError: for a word that occurs twice, for fewer than two words, or for a string that is not a word.
    """

    def __init__(self, words: Sequence[str]) -> None:
        if not all(isinstance(word, str) and word and (word == LINE_END or word.split() == [word]) for word in words):
            raise ValueError("vocabulary: expected words without whitespace in them, or a line's end")
        self.words = tuple(words)
        self.size = len(self.words)
        self._tokens = {word: token for token, word in enumerate(self.words)}
        if len(self._tokens) < self.size:
            twice = Counter(self.words).most_common(1)[0][0]
            raise ValueError(f"vocabulary: expected every word once, got {twice!r} twice")
        if self.size < 2:
            raise ValueError(f"vocabulary: expected at least 2 words, got {self.size}")

    @classmethod
    def of(cls, texts: Iterable[bytes], size: int | None = None) -> Self:
        """The words of the texts, the most frequent first; with a `size`, at most `size` words, including `UNKNOWN`."""
        counts = Counter(chain.from_iterable(map(split, texts)))
        if size is not None:
            counts[UNKNOWN] = max(counts.values(), default=0) + 1  # first, so that it is kept
        words = sorted(counts, key=lambda word: (-counts[word], word))
        return cls(words[:size])

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Reads what `to_json` gave. Raises ValueError for a file that is missing or is not a vocabulary."""
        file = Path(os.path.expanduser(path))
        if file.exists() and not file.is_file():  # reading a pipe would never end
            raise ValueError(f"vocabulary {path}: expected a file")
        try:
            words = json.loads(file.read_text(encoding="utf-8"))
        except OSError as error:
            raise ValueError(f"vocabulary {path}: cannot be read: {error.strerror or error}") from None
        except (ValueError, RecursionError):
            raise ValueError(f"vocabulary {path}: expected a list of words in JSON") from None
        if not isinstance(words, list):
            raise ValueError(f"vocabulary {path}: expected a list of words in JSON, got a {type(words).__name__}")
        return cls(words)

    def to_json(self) -> str:
        """A JSON list, for `load`."""
        return json.dumps(self.words, ensure_ascii=False)

    @property
    def fingerprint(self) -> str:
        """A short text that differs for other words, or another order of them."""
        return hashlib.sha256(json.dumps(self.words).encode()).hexdigest()[:12]

    def encode(self, text: bytes) -> NDArray[np.int32]:
        """The tokens of a text, [L].

        Raises:
            ValueError: for a word that is not in the vocabulary, unless `UNKNOWN` is, or for a text that is not UTF-8.
        """
        unknown = self._tokens.get(UNKNOWN, -1)
        tokens = np.fromiter((self._tokens.get(word, unknown) for word in split(text)), np.int32)
        if (tokens < 0).any():
            word = next(word for word in split(text) if word not in self._tokens)
            raise ValueError(f"the word {word!r} is not among the vocabulary's {self.size} words, nor is {UNKNOWN!r}")
        return tokens

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens, with single spaces between words."""
        text = " ".join(self.words[token] for token in tokens)
        return text.replace(f" {LINE_END}", LINE_END).replace(f"{LINE_END} ", LINE_END)

    def name(self, token: int) -> str:
        """A word as in an ASCII literal of Python."""
        return ascii(self.words[token])[1:-1]


Vocabulary = Bytes | Words


def split(text: bytes) -> Iterator[str]:
    """The words of a text, and its newlines. Raises ValueError if it is not UTF-8."""
    *lines, last = decoded(text).split("\n")
    for line in lines:
        yield from line.split()
        yield LINE_END
    yield from last.split()


def decoded(text: bytes) -> str:
    """The text, without a byte order mark. Raises ValueError if it is not UTF-8."""
    try:
        return text.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8; read the text with unit bytes") from None
