"""Archives of Stable-Baselines3: opened only if they are trusted, rejected if they are damaged."""

import base64
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers.own_cores import Decay
from helpers.runs import resume, train

pytest.importorskip("sb3_contrib", reason="Stable-Baselines3 is not installed: pip install rmc-agents[sb3]")

from sb3_contrib import RecurrentPPO

from rmc_agents import plugins
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.evaluate import export, watch
from rmc_agents.evaluate.episodes import env_spec
from rmc_agents.runs import archive, checkpoint
from rmc_agents.runs.saved import load_policy
from rmc_agents.sb3 import make_sb3_env
from rmc_agents.sb3.saved import make_policy

pytestmark = pytest.mark.slow
CPU = torch.device("cpu")


@pytest.mark.parametrize("command", ["evaluate", "watch", "resume"])
def test_an_archive_is_opened_only_with_trust(
    command: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*flags: str) -> int:
        if command == "evaluate":
            return evaluate_cli.main([str(trained), "--episodes", "2", *flags])
        if command == "watch":
            return watch.main([str(trained), "--max-steps", "5", "--out", str(tmp_path / "x.gif"), *flags])
        return resume(trained, *flags)

    capsys.readouterr()
    assert run() == 2
    captured = capsys.readouterr()
    assert "opening one can run any code" in captured.err
    assert "add --trust" in captured.err
    assert captured.err.count("\n") == 1
    assert run("--trust") == 0
    assert command != "watch" or (tmp_path / "x.gif").stat().st_size > 0


def test_refusing_runs_no_code_of_the_archive(trained: Path, tmp_path: Path) -> None:
    path, facts = archive.find(trained)
    evil = tmp_path / "evil.zip"
    mark = f"__import__('pathlib').Path({str(tmp_path / 'ran')!r}).touch()"
    pickled = f"cbuiltins\neval\n(V{mark}\ntR.".encode()  # protocol 0: eval(mark)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(evil, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "data":
                data = json.loads(content)
                data["policy_class"] = {":type:": "x", ":serialized:": base64.b64encode(pickled).decode()}
                content = json.dumps(data).encode()
            new.writestr(name, content)
    assert evaluate_cli.main([str(evil)]) == 2
    assert export.main([str(evil), str(tmp_path / "out.safetensors")]) == 2
    assert not (tmp_path / "ran").exists()
    evaluate_cli.main([str(evil), "--trust", "--episodes", "1"])
    assert (tmp_path / "ran").exists(), "the archive would have run it"
    assert archive.ArchiveInfo.read(evil) == facts


def test_what_was_trained_is_what_is_opened(trained: Path) -> None:
    path, facts = archive.find(trained)
    saved = load_policy(trained, CPU, trust=True)
    assert (saved.path, saved.frames, saved.spec) == (path, 400, env_spec("minipacman"))
    model = RecurrentPPO.load(path)  # an archive that Stable-Baselines3 itself opens
    assert model.num_timesteps == 400
    for name, weight in model.policy.state_dict().items():
        assert torch.equal(saved.agent.policy.state_dict()[name], weight)
    assert facts.parameters == sum(p.numel() for p in make_policy(model, saved.spec).parameters())


def test_a_damaged_archive_is_passed_over_or_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = archive.find(trained)[0].read_bytes()
    for update in (1, 2):
        checkpoint.write_numbered(tmp_path, update, content, keep=3, suffix=archive.SUFFIX)
    newest = tmp_path / "checkpoints" / "update-000000002.zip"
    flipped = bytearray(newest.read_bytes())
    flipped[len(flipped) // 2] ^= 255
    for damaged in (bytes(flipped), content[:1000], b""):
        newest.write_bytes(damaged)
        assert archive.find(tmp_path)[0].name == "update-000000001.zip"
        assert evaluate_cli.main([str(newest), "--trust"]) == 2
        captured = capsys.readouterr()
        assert "damaged" in captured.err
        assert captured.err.count("\n") == 1
    RecurrentPPO("RmcPolicy", make_sb3_env("recall", 2), n_steps=2, batch_size=4).save(tmp_path / "foreign.zip")
    assert evaluate_cli.main([str(tmp_path / "foreign.zip"), "--trust"]) == 2
    assert "is not a checkpoint of rmc-train" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("spoil", "expected"),
    [
        ({"frames": -1}, "frames: expected a number of at least 0"),
        ({"seconds": float("nan")}, "seconds: expected a finite number"),
        ({"config": [1]}, "config"),
        ({"updates": "10"}, "updates: expected a int"),
        ({"spec": {"a": 1}}, ""),
        ({"unknown": 1}, "unexpected keyword argument 'unknown'"),
    ],
    ids=str,
)
def test_facts_that_no_run_has_are_one_line(
    spoil: dict[str, Any], expected: str, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, facts = archive.find(trained)
    spoiled = tmp_path / "checkpoints" / path.name
    spoiled.parent.mkdir()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(spoiled, "w") as new:
        for name in old.namelist():
            is_facts = name == archive.MEMBER
            new.writestr(name, json.dumps(facts._asdict() | spoil) if is_facts else old.read(name))
    assert evaluate_cli.main([str(spoiled), "--trust"]) == 2
    captured = capsys.readouterr()
    assert f"{spoiled} is damaged or not a checkpoint" in captured.err
    assert expected in captured.err
    assert captured.err.count("\n") == 1


def test_a_core_that_is_not_registered_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugins.registered["core"]["mine"] = Decay
    flags = ["--algo", "recurrent-ppo", "--core", "mine", "--total-frames", "40"]
    assert train(*flags, "--run-dir", str(tmp_path / "run")) == 0
    del plugins.registered["core"]["mine"]
    capsys.readouterr()
    assert evaluate_cli.main([str(tmp_path / "run"), "--trust"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("rmc-evaluate: core: there is no core 'mine'")
    assert "register_core" in message
    assert message.count("\n") == 1


def test_a_bomb_is_refused_by_its_declared_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bomb = tmp_path / "bomb.zip"
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr(archive.MEMBER, b" " * 10_000_000)
    assert evaluate_cli.main([str(bomb), "--trust"]) == 2
    assert f"{bomb} is damaged or not a checkpoint" in (output := capsys.readouterr().err)
    assert "declared are 10,000,000" in output
