"""Checkpoints: exact round trips, damage noticed, nothing half-written, the newest valid one found."""

import errno
import os
import re
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save as to_safetensors
from safetensors.torch import save_file

from helpers.runs import assert_same, find_and_load
from rmc_agents.envs.processes import ChildContext, stop_signals_blocked
from rmc_agents.files import replacing, temporaries, write_atomically
from rmc_agents.runs import checkpoint
from rmc_agents.runs.checkpoint import CheckpointError
from rmc_agents.runs.folder import check_resumable

TREE = {
    "weights": {"a": torch.randn(3, 4), "scalar": torch.tensor(2.5), "empty": torch.empty(0, 3)},
    "arrays": [np.arange(3, dtype=np.uint64) + 2**63, np.array([True, False]), np.zeros((2, 0), np.int16), np.zeros(0)],
    "bytes": torch.randint(0, 255, (7,), dtype=torch.uint8),
    "marks": [{"tensor": torch.ones(2)}, {"array": "x"}, {"dict": {"tensor": 1}}],
    "plain": {"name": "x", "none": None, "pi": 3.141592653589793, "big": 2**80, "list": [1, [True]]},
}


def test_round_trip(tmp_path: Path) -> None:
    checkpoint.save(tmp_path / "x", TREE)
    assert_same(TREE, checkpoint.load(tmp_path / "x"))
    assert os.listdir(tmp_path) == ["x"]


def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "x"
    checkpoint.save(path, {"a": torch.arange(5.0), "b": 1})
    good = path.read_bytes()
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 4]) + good[place + 1 :])
        with pytest.raises(CheckpointError):
            checkpoint.load(path)


def test_a_file_whose_checksum_leaves_out_the_version_still_opens(tmp_path: Path) -> None:
    """As written before the checksum covered it."""
    (tmp_path / "x").write_bytes(packed('{"a": {"tensor": "/a"}}', version="0.1.0"))
    assert_same(checkpoint.load(tmp_path / "x"), {"a": torch.zeros(2)})


@pytest.mark.parametrize("size", [0, 5, 100, -1])
def test_cut_off_files_are_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "x"
    checkpoint.save(path, TREE)
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(CheckpointError, match="damaged"):
        checkpoint.load(path)


def test_foreign_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no checkpoint"):
        checkpoint.load(tmp_path / "missing")
    save_file({"a": torch.zeros(2)}, tmp_path / "foreign")
    with pytest.raises(CheckpointError, match="not a checkpoint of rmc-agents"):
        checkpoint.load(tmp_path / "foreign")
    torch.save({"a": torch.zeros(2)}, tmp_path / "pickle")
    with pytest.raises(CheckpointError, match="damaged or not a checkpoint"):
        checkpoint.load(tmp_path / "pickle")
    with pytest.raises(CheckpointError, match="holds no checkpoint"):
        find_and_load(tmp_path)


def test_a_folder_in_or_around_a_run_is_told_where_the_run_is(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "one"
    run.mkdir(parents=True)
    checkpoint.write_numbered(run, 1, checkpoint.to_bytes({"a": torch.zeros(2)}), keep=1)
    for folder in (run / checkpoint.FOLDER, run.parent):
        with pytest.raises(CheckpointError, match=f"holds no checkpoint .*did you mean {run}"):
            find_and_load(folder)
        with pytest.raises(ValueError, match=f"cannot resume .*did you mean {run}"):
            check_resumable(folder)


def test_a_run_folder_that_is_gone_is_not_made_again(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        checkpoint.write_numbered(tmp_path / "gone", 1, checkpoint.to_bytes({"a": torch.zeros(2)}), keep=1)


def test_code_and_unknown_leaves_are_not_saved(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="/a/b is a object"):
        checkpoint.save(tmp_path / "x", {"a": {"b": object()}})
    assert os.listdir(tmp_path) == []


def test_the_newest_valid_one_is_found_and_old_ones_go(tmp_path: Path) -> None:
    for update in (1, 2, 9, 10):
        checkpoint.write_numbered(tmp_path, update, checkpoint.to_bytes({"update": update}), keep=3)
    names = sorted(os.listdir(tmp_path / "checkpoints"))
    assert [int(name[7:16]) for name in names] == [2, 9, 10]
    path, tree = find_and_load(tmp_path)
    assert tree["update"] == 10
    path.write_bytes(path.read_bytes()[:-1] + b"\0\0")
    assert find_and_load(tmp_path)[1]["update"] == 9
    assert find_and_load(tmp_path / "checkpoints" / names[0])[1]["update"] == 2
    for name in names:
        (tmp_path / "checkpoints" / name).write_bytes(b"")
    with pytest.raises(CheckpointError, match="no valid checkpoint"):
        find_and_load(tmp_path)


def test_damaged_newer_ones_do_not_crowd_out_valid_ones(tmp_path: Path) -> None:
    for update in (7, 8, 9, 10):
        checkpoint.write_numbered(tmp_path, update, checkpoint.to_bytes({"update": update}), keep=4)
    for update in (9, 10):
        (tmp_path / "checkpoints" / f"update-{update:09d}.safetensors").write_bytes(b"damaged")
    path, tree = find_and_load(tmp_path)
    assert tree["update"] == 8
    aside = checkpoint.rename_unreadable(path)
    assert [file.read_bytes() for file in aside] == [b"damaged", b"damaged"], "nothing is lost"
    assert [update for update in (7, 8, 9, 10) if checkpoint.is_saved(tmp_path, update)] == [7, 8]
    checkpoint.write_numbered(tmp_path, 11, checkpoint.to_bytes({"update": 11}), keep=2)
    assert [int(path.name[7:16]) for path in checkpoint.numbered(tmp_path)] == [11, 8]


def test_a_long_name_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("ä" * 120 + ".safetensors")  # of at most 255 bytes
    checkpoint.save(path, {"x": 1})
    assert checkpoint.load(path) == {"x": 1}
    assert os.listdir(tmp_path) == [path.name]


def test_who_may_read_a_file_is_the_users_choice(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        checkpoint.save(tmp_path / "x", {"x": 1})
    finally:
        os.umask(before)
    assert (tmp_path / "x").stat().st_mode & 0o777 == 0o600


def test_a_disk_that_fails_is_not_a_damaged_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for update in (7, 8):
        checkpoint.write_numbered(tmp_path, update, checkpoint.to_bytes({"update": update}), keep=4)

    def fail(path: Path) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        find_and_load(tmp_path)


def test_places_with_a_slash_in_a_key_are_distinguished(tmp_path: Path) -> None:
    tree = {"a": {"b": torch.zeros(1), "~1b": torch.ones(3)}, "a/b": torch.ones(2), "a~1b": torch.ones(4)}
    checkpoint.save(tmp_path / "x", tree)
    assert_same(tree, checkpoint.load(tmp_path / "x"))


def packed(text: str, **metadata: str) -> bytes:
    """A file whose checksum is right, whatever its tree's JSON is."""
    tensors = {"/a": torch.zeros(2)}
    header = {"format": checkpoint.FORMAT, "tree": text, "sha256": checkpoint._digest(text, tensors)}
    return to_safetensors(tensors, header | metadata)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"a":' * 20_000 + "1" + "}" * 20_000,
        "{",
        "[]",
        "7",
        '{"a": ' + "1" * 5000 + "}",
        '{"a": {"tensor": "/b"}}',
        '{"a": {"tensor": ["/a"]}}',
        '{"a": {"tensor": "/a"}, "b": {"tensor": "/a"}}',
    ],
    ids=["recursion", "deep", "cut off", "list", "number", "digits", "no tensor", "no name", "one tensor twice"],
)
def test_a_whole_file_with_a_bad_tree_is_one_line(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(packed(text))
    with pytest.raises(CheckpointError, match=re.escape(str(path))) as raised:
        checkpoint.load(path)
    assert "\n" not in str(raised.value)


def test_another_format_says_which_version_made_it(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(packed("{}", format="rmc-agents-checkpoint-7", version="3.2.1"))
    with pytest.raises(CheckpointError, match=r"made by version 3\.2\.1 in format 7; version .* reads format 1"):
        checkpoint.load(path)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "link to a device"])
def test_only_regular_files_are_opened(kind: str, tmp_path: Path) -> None:
    checkpoint.write_numbered(tmp_path, 1, checkpoint.to_bytes({"update": 1}), keep=2)
    path = tmp_path / "checkpoints" / "update-000000002.safetensors"
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "link to a device":
            path.symlink_to("/dev/zero")
        case "device":
            path = Path("/dev/zero")
    with pytest.raises(CheckpointError, match="expected a regular file"):
        checkpoint.load(path)
    assert find_and_load(tmp_path)[1] == {"update": 1}
    checkpoint.write_numbered(tmp_path, 3, checkpoint.to_bytes({"update": 3}), keep=2)
    assert find_and_load(tmp_path)[1] == {"update": 3}


def test_another_files_error_in_the_block_keeps_its_name(tmp_path: Path) -> None:
    missing = tmp_path / "table.bin"
    with pytest.raises(FileNotFoundError) as raised, replacing(tmp_path / "a.mp4"):
        missing.open()
    assert raised.value.filename == str(missing)
    with replacing(tmp_path / "id") as temporary:
        assert temporaries(tmp_path / "id") == [temporary]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "target")
    for content in (b"old", b"new"):
        write_atomically(tmp_path / "link", content)
        assert (tmp_path / "target").read_bytes() == content
    assert (tmp_path / "link").is_symlink()


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x"
    checkpoint.save(path, {"update": 1})

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(path, {"update": 2})
    assert checkpoint.load(path) == {"update": 1}
    assert os.listdir(tmp_path) == ["x"]


def save_for_ever(run_dir: Path, pipe: Connection) -> None:
    while os.fork():  # one process after another, each of which is killed
        os.wait()
        pipe.send("killed")
        pipe.recv()
    for update in range(1, 10**6):
        tree = {"update": update, "tensor": torch.full((200_000,), float(update))}
        checkpoint.write_numbered(run_dir, update, checkpoint.to_bytes(tree), keep=2)
        pipe.send((os.getpid(), update))


@pytest.mark.slow
def test_killing_while_saving_loses_only_what_was_not_saved(tmp_path: Path) -> None:
    with stop_signals_blocked():
        pipe, process = ChildContext().start(save_for_ever, tmp_path, daemon=False)
    for attempt in range(4):
        saved = [pipe.recv() for _ in range(3)]
        time.sleep(0.007 * attempt)  # at some point during a save
        os.kill(saved[-1][0], signal.SIGKILL)
        saved += iter(pipe.recv, "killed")
        _, tree = find_and_load(tmp_path)
        assert tree["update"] >= saved[-1][1]
        assert tree["tensor"].eq(tree["update"]).all()
        for path in (tmp_path / "checkpoints").glob("update-*"):
            checkpoint.load(path)
            path.unlink()
        if attempt < 3:
            pipe.send("continue")
    process.kill()
    process.join()
    checkpoint.write_numbered(tmp_path, 1, checkpoint.to_bytes({}), keep=2)
    assert len(os.listdir(tmp_path / "checkpoints")) == 1, "temporary files of killed processes are cleared away"
