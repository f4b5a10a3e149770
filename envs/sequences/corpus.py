"""Texts on disk as documents of tokens."""

import glob
import os
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .vocabulary import Bytes, Vocabulary, Words, decoded


class Corpus(NamedTuple):
    """Documents, concatenated."""

    tokens: NDArray[np.integer[Any]]  # [L]: uint8 or int32
    ends: NDArray[np.int64]  # [D]: the end of each document
    vocabulary: Vocabulary


def load_corpus(path: str | Path, unit: str, vocabulary: str | Path | None, vocabulary_size: int | None) -> Corpus:
    """The documents at a path, as tokens. Raises ValueError as `Text` does."""
    try:
        files = files_of(path)
        stamps = tuple((name, (stat := name.stat()).st_size, stat.st_mtime_ns) for name in files)
        known = Words.load(vocabulary) if vocabulary is not None else None
        return _read(str(path), stamps, unit, known and known.words, vocabulary_size)
    except OSError as error:
        raise ValueError(f"text {error.filename or path}: cannot be read: {error.strerror or error}") from None


@lru_cache(maxsize=2)  # a run makes its environment several times, and a hundred million words take half a minute
def _read(
    path: str,
    stamps: tuple[tuple[Path, int, int], ...],
    unit: str,
    words: tuple[str, ...] | None,
    vocabulary_size: int | None,
) -> Corpus:
    """The files of `stamps` as a corpus; they are read again if one of them has changed."""
    # Files of /proc have no size. Reading one can block, or show secrets: a stranger's agent may name it as its text.
    texts = [name.read_bytes() if size else b"" for name, size, _ in stamps]
    if not any(texts):
        raise ValueError(f"text {path}: expected a text, got an empty one")
    if unit == "words":
        for (name, _, _), text in zip(stamps, texts, strict=True):
            try:
                decoded(text)
            except ValueError as error:
                raise ValueError(f"text {name}: {error}") from None
    try:
        vocabulary: Vocabulary = Bytes()
        if unit == "words":
            vocabulary = Words(words) if words is not None else Words.of(texts, vocabulary_size)
        documents = [vocabulary.encode(text) for text in texts]
    except ValueError as error:
        raise ValueError(f"text {path}: {error}") from None
    tokens: NDArray[np.integer[Any]] = np.concatenate(documents)
    tokens.flags.writeable = False
    return Corpus(tokens, np.cumsum([len(document) for document in documents]), vocabulary)


def files_of(path: str | Path) -> list[Path]:
    """The file, the files of a folder or those that match a pattern, sorted by path. A folder's hidden files and
    linked folders are left out.

    Raises:
      ValueError: if there are none.
    """
    base = Path(os.path.expanduser(path))  # Path.expanduser raises RuntimeError for unknown users
    if base.is_file():
        return [base]
    if base.is_dir():
        found = [name for name in base.rglob("*") if not any(p.startswith(".") for p in name.relative_to(base).parts)]
    else:
        found = [Path(name) for name in glob.glob(str(base), recursive=True)]
    files = sorted(name for name in found if name.is_file())
    if not files:
        where = "" if base.is_absolute() else f" in {os.getcwd()}"
        missing = "it is not a regular file" if base.exists() else f"there is no such file or folder{where}"
        what = "the folder has no files, linked folders left out" if base.is_dir() else missing
        raise ValueError(f"text {path}: {what}; expected a file, a folder of files, or a pattern such as 'books/*.txt'")
    return files


def part_of(corpus: Corpus, part: str, held_out: float) -> tuple[NDArray[np.integer[Any]], NDArray[np.int64]]:
    """The tokens of a part [L], and the boundaries of its documents [D + 1]."""
    cut = len(corpus.tokens) - round(held_out * len(corpus.tokens))
    first = cut if part == "heldout" else 0
    last = cut if part == "train" else len(corpus.tokens)
    inside = corpus.ends[(corpus.ends > first) & (corpus.ends < last)]
    return corpus.tokens[first:last], np.array([first, *inside, last], np.int64) - first


def passages(borders: NDArray[np.int64], steps: int | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first and the last token of each passage: a document, or a piece of at most `steps` steps of a longer one.

    A piece begins with the last token of the piece before it, so that every token except a document's first is asked
    for once. Documents of one token ask nothing and are left out.
    """
    first, last = borders[:-1], borders[1:] - 1
    first, last = first[last > first], last[last > first]
    if steps is None:
        return first, last
    pieces = -(-(last - first) // steps)
    offsets = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins = np.repeat(first, pieces) + steps * offsets
    return begins, np.minimum(begins + steps, np.repeat(last, pieces))
