"""Text: which tokens lanes read, against documents taken apart by hand, and what cannot be read."""

import codecs
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oracles.sequences import passages
from rmc_agents.envs.nested import MAX_CATEGORIES
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.envs.sequences.text import Text, TextVectorEnv
from rmc_agents.envs.sequences.vocabulary import UNKNOWN, Bytes, Words
from rmc_agents.spaces import SpaceSpec

TEXTS = {"a.txt": b"The first text.\n", "b/c.txt": b"x", "b/d.txt": b"Another, \xff longer one, in a folder.", "e": b""}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "b").mkdir()
    (tmp_path / ".hidden").write_bytes(b"not to be read")
    for name, text in TEXTS.items():
        (tmp_path / name).write_bytes(text)
    return tmp_path


def read(env: TextVectorEnv, steps: int, seed: int = 0) -> list[list[list[int]]]:
    """The sequences that each lane reads; that every target is the next token is checked on the way."""
    obs, infos = env.reset(seed=seed)
    found = [[[int(token)]] for token in obs[:, 0]]
    ended = np.zeros(env.num_envs, bool)
    for _ in range(steps):
        targets, was_ended = infos["target"], ended
        obs, _, ended, _, infos = env.step(np.zeros(env.num_envs, int))
        for lane, token in enumerate(obs[:, 0].tolist()):
            if was_ended[lane]:
                assert targets[lane] == -1
                found[lane].append([token])
            else:
                assert targets[lane] == token
                found[lane][-1].append(token)
    return found


@pytest.mark.parametrize("steps", [None, 1, 4, 15, 1000])
def test_a_lane_reads_one_document_after_the_other(folder: Path, steps: int | None) -> None:
    documents = [list(TEXTS[name]) for name in sorted(TEXTS)]
    expected = passages(documents, steps)
    (found,) = read(TextVectorEnv(1, folder, part="all", steps=steps), 200)
    assert len(found) > len(expected)
    for i, sequence in enumerate(found[:-1]):
        assert sequence == expected[i % len(expected)]


def test_the_end_is_held_out(tmp_path: Path) -> None:
    text = bytes(range(200))
    for name, piece in (("a", text[:50]), ("b", text[50:90]), ("c", text[90:])):
        (tmp_path / name).write_bytes(piece)
    for held_out, cut in ((0.1, 180), (0.6, 80)):
        (train,) = read(TextVectorEnv(1, tmp_path, held_out=held_out), cut - 1)
        (heldout,) = read(TextVectorEnv(1, tmp_path, part="heldout", held_out=held_out), 200 - cut - 1)
        assert bytes(token for sequence in train for token in sequence) == text[:cut]
        assert bytes(token for sequence in heldout for token in sequence) == text[cut:]


def test_lanes_are_spread_evenly_however_many(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(1000))
    for lanes in (1, 2, 3, 10, 64):
        for seed in (0, 5, 10**12):
            env = Text(lanes, tmp_path / "a", part="all")
            env.reset(np.ones(lanes, bool), range(seed, seed + lanes), np.random.default_rng(0))
            places = np.sort(env.state.begin)
            gaps = np.diff([*places, places[0] + 1000])
            assert gaps.max() <= 2 * 1000 / lanes  # the three-gap theorem's bound is 1.9 for the golden ratio
    passage_env = Text(64, tmp_path / "a", part="all", steps=100)
    passage_env.reset(np.ones(64, bool), range(64), np.random.default_rng(0))
    assert set(passage_env.state.begin.tolist()) == set(range(0, 1000, 100))


def test_words_are_read_with_their_lines_ends(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("the cat  saw\nthe dög\n\nand the cat", encoding="utf-8")
    env = TextVectorEnv(1, tmp_path / "a", unit="words", part="all")
    vocabulary = env.lanes.vocabulary  # type: ignore[attr-defined]
    assert vocabulary.words == ("\n", "the", "cat", "and", "dög", "saw")
    (found,) = read(env, 10)
    assert found == [[1, 2, 5, 0, 1, 4, 0, 0, 3, 1, 2]]
    assert vocabulary.decode(found[0]) == "the cat saw\nthe dög\n\nand the cat"
    assert env.single_action_space.n == 6  # type: ignore[attr-defined]
    assert env.metadata["chance"] == 1 / 6
    (tmp_path / "marked").write_bytes(codecs.BOM_UTF8 + (tmp_path / "a").read_bytes())
    assert TextVectorEnv(1, tmp_path / "marked", unit="words").lanes.vocabulary.words == vocabulary.words  # type: ignore


def test_a_smaller_vocabulary_has_a_word_for_the_others(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("b a b a b c d")
    env = TextVectorEnv(1, tmp_path / "a", unit="words", part="all", vocabulary_size=3)
    assert env.lanes.vocabulary.words == (UNKNOWN, "b", "a")  # type: ignore[attr-defined]
    assert read(env, 6) == [[[1, 2, 1, 2, 1, 0, 0]]]


def test_paths_may_begin_with_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "a").write_text("one two")
    (tmp_path / "v.json").write_text('["one", "two"]')
    assert Text(1, "~/a", unit="words", vocabulary="~/v.json", part="all").vocabulary.size == 2
    with pytest.raises(ValueError, match="there is no such file"):
        Text(1, "~nobody-of-this-name/a")


def test_a_vocabulary_is_kept_and_used_again(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one two three")
    (tmp_path / "b").write_text("three one")
    (tmp_path / "c").write_text("one four")
    vocabulary = TextVectorEnv(1, tmp_path / "a", unit="words", part="all").lanes.vocabulary  # type: ignore[attr-defined]
    (tmp_path / "words.json").write_text(vocabulary.to_json())
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "b", "c", "words.json"]
    again = TextVectorEnv(1, tmp_path / "b", unit="words", part="all", vocabulary=tmp_path / "words.json")
    assert read(again, 1) == [[vocabulary.encode(b"three one").tolist()]]
    with pytest.raises(
        ValueError, match=r"text .*c: the word 'four' is not among the vocabulary's 3 words, nor is '<unk>'"
    ):
        Text(1, tmp_path / "c", unit="words", vocabulary=tmp_path / "words.json")


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    for text in (b"abc", b"abcd"):
        (tmp_path / "a").write_bytes(text)
        assert bytes(Text(1, tmp_path / "a", part="all").tokens) == text


def test_patterns_choose_files(folder: Path) -> None:
    assert bytes(Text(1, f"{folder}/**/*.txt", part="all").tokens) == b"".join(
        TEXTS[name] for name in ("a.txt", "b/c.txt", "b/d.txt")
    )


def test_bytes_are_decoded_whatever_they_are() -> None:
    assert Bytes().decode([72, 105, 255]) == "Hi\ufffd"
    assert len({Bytes().name(byte) for byte in range(256)}) == 256
    assert [Bytes().name(byte) for byte in b"a\n\xc3"] == ["a", "\\n", "\\xc3"]


def test_lanes_by_name(folder: Path) -> None:
    env = make_vector_env(f"text-heldout-steps2:{folder}", 2)
    assert isinstance(env, TextVectorEnv)
    assert bytes(env.lanes.tokens) == b"older."[1:]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("nowhere", {}, "there is no such file or folder; expected a file, a folder of files, or a pattern"),
        ("empty_folder", {}, "the folder has no files"),
        ("pipe", {}, "it is not a regular file; expected a file"),
        ("empty", {}, "expected a text, got an empty one"),
        pytest.param(
            "/proc/self/environ",
            {},
            "expected a text, got an empty one",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="Linux's"),
        ),
        ("one", {"part": "all"}, "expected a all part with a document of at least 2 tokens, got 1 in 1"),
        ("two", {"part": "heldout"}, "expected a heldout part with a document of at least 2 tokens, got 0 in 1"),
        ("binary", {"unit": "words"}, "byte 3 is not UTF-8; read the text with unit bytes"),
        ("mixed", {"unit": "words"}, "mixed/picture: byte 0 is not UTF-8"),
        ("ones", {"part": "all"}, "expected a all part with a document of at least 2 tokens, got 3 in 3"),
        ("two", {"unit": "letters"}, "unit: expected one of bytes, words; got 'letters'"),
        ("two", {"part": "test"}, "part: expected one of train, heldout, all; got 'test'"),
        ("two", {"held_out": 0}, "held_out: expected a number between 0 and 1, got 0"),
        ("two", {"steps": 0}, "steps: expected an int from 1 to .*, got 0"),
        ("two", {"vocabulary_size": 5}, "vocabulary_size: expected none with bytes"),
        (
            "two",
            {"unit": "words", "vocabulary": "v", "vocabulary_size": 5},
            "vocabulary_size: expected none with a vocab",
        ),
        ("two", {"unit": "words"}, "expected at least 2 words, got 1"),
        ("two", {"unit": "words", "vocabulary": "nowhere.json"}, "vocabulary nowhere.json: cannot be read"),
    ],
)
def test_bad_input_is_refused_in_one_line(tmp_path: Path, name: str, settings: dict[str, Any], message: str) -> None:
    (tmp_path / "empty_folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for file, text in {"empty": b"", "one": b"x", "two": b"xy", "binary": b"abc\xff\xfe"}.items():
        (tmp_path / file).write_bytes(text)
    for file, text in {
        "mixed/a": b"a b",
        "mixed/picture": b"\xff",
        "ones/a": b"a",
        "ones/b": b"b",
        "ones/c": b"c",
    }.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(text)
    with pytest.raises(ValueError, match=message) as caught:
        TextVectorEnv(1, tmp_path / name, **settings)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "expected words without whitespace in them"),
        ('["a b", "c"]', "expected words without whitespace in them"),
        ('["a", "b", "a"]', "expected every word once, got 'a' twice"),
        ('{"a": 1}', "expected a list of words in JSON, got a dict"),
        ("[" * 100_000, "expected a list of words in JSON"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "words.json").write_text(content)
    with pytest.raises(ValueError, match=message):
        Words.load(tmp_path / "words.json")


def test_a_text_shorter_than_a_rollout_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    env = TextVectorEnv(9, tmp_path / "a")
    env.check_unroll(10, 9)
    with pytest.raises(ValueError, match="expected at least 99 tokens for 9 lanes of 11 steps, got 90; take fewer"):
        env.check_unroll(11, 9)


def test_agents_embed_tokens_however_many_there_are(tmp_path: Path) -> None:
    (tmp_path / "a").write_text(" ".join(map(str, range(MAX_CATEGORIES + 1))))
    spec = SpaceSpec.of(TextVectorEnv(1, tmp_path / "a", unit="words"))
    assert (spec.obs_shape, spec.obs_dtype, spec.obs_are_tokens) == ((1,), "int32", True)


def test_a_state_out_of_bounds_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    env = TextVectorEnv(2, tmp_path / "a", part="all", steps=10)
    env.reset(seed=0)
    last = env.lanes._last[env.get_state()["next_passage"]]
    for name, value in (("begin", [90, 0]), ("begin", [-1, 0]), ("next_passage", [10, 0]), ("next_begin", last)):
        with pytest.raises(ValueError, match=rf"state field '{name}': expected .* got"):
            env.set_state({**env.get_state(), name: np.array(value)})


def test_the_state_before_the_first_reset_is_taken(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")  # no passage begins in it
    (tmp_path / "b").write_bytes(bytes(100))
    env = TextVectorEnv(2, tmp_path, part="all", steps=10)
    before = env.get_state()
    env.set_state(before)
    for name, value in env.get_state().items():
        np.testing.assert_array_equal(value, before[name])


def test_words_are_saved_as_json(tmp_path: Path) -> None:
    (tmp_path / "words.json").write_text(Words(["ä", "\n"]).to_json())
    assert json.loads((tmp_path / "words.json").read_text(encoding="utf-8")) == ["ä", "\n"]


@pytest.mark.parametrize("steps", [3, 7, 1000])
def test_consecutive_seeds_read_every_passage_once(steps: int, tmp_path: Path) -> None:
    for name, length in (("a", 50), ("b", 9), ("c", 2), ("d", 23)):
        (tmp_path / name).write_bytes(bytes(range(length)))
    passages = len(Text(1, tmp_path, part="all", steps=steps)._first)
    text = Text(passages, tmp_path, part="all", steps=steps)
    for lane in range(passages):
        text.seed(lane, 1_000_000 + lane)
    text.start(np.ones(passages, bool))
    asked = np.concatenate([np.arange(n) + b for b, n in zip(text.state.begin, text.state.length, strict=True)])
    assert sorted(asked) == [i for i in range(84) if i not in (49, 58, 60, 83)]  # not a document's last
