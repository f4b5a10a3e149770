"""Help, and errors that can be found without torch, are printed before any slow import."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rmc_agents.evaluate import export
from rmc_agents.train import cli as train

PROGRAM = """
import importlib, json, sys
for module, words in json.loads(sys.argv[1]).items():
    main = importlib.import_module(f"rmc_agents.{module}").main
    for argv in [each.split() for each in words]:
        try:
            status = main(argv)
        except SystemExit as end:
            status = end.code
        print("STATUS", module, status, flush=True)
    heavy = ("torch", "numba", "scipy.stats", "tensorboard", "optuna", "matplotlib.figure")
    print("HEAVY", module, [name for name in heavy if name in sys.modules])
"""
GUESSES = {
    "--env ALE/Pong-v5": "ale_py:ALE/Pong-v5",
    "--env Taxi-v3": "did you mean 'Taxi-v4'?",
    "--core lstmm": "did you mean 'lstm'?",
    "--core nowhere:Core": "importing nowhere failed",
    "--env minipackman": "did you mean 'minipacman'?",
    "--init-from minipacman-rmx": "minipacman-rmc",
    "--core-args width": "expected NAME=VALUE, got 'width'",
    "--mem-slots many": "expected an integer, got 'many'",
    "--encoder-sizes 32,32": "rmc-train: --encoder-sizes: expected values separated by spaces, got 32,32",
    "--core --env recall": "rmc-train: --core: expected a value, got none",
    "--encoder-sizes a": "rmc-train: --encoder-sizes: expected numbers separated by spaces, got 'a'",
    "--num-envs": "rmc-train: --num-envs: expected a value, got none",
    "--precision f3": "rmc-train: --precision: expected one of 'float32', 'bf16', got 'f3'",
    "--discount high": "expected a number, got 'high'",
    "--key-size large": "expected an integer or None, got 'large'",
    "--video false": "switches take no value",
    "--diagnostics 1": "switches take no value",
    "--core own_core.Decay": "did you mean 'own_core:Decay'",
    "--env own_env.Corridor": "did you mean 'own_env:Corridor'",
    "--env poem.txt": "text:PATH",
    "--env text-words": "expected text-words:PATH, of a file",
}
"""Wrong words for rmc-train -> what the message has."""
HELP = ["--help", "--help-all", "--version"]
COMMANDS = {
    "train.cli": [
        *GUESSES,
        "--env nowhere:X-v0",
        "--encoder convv",
        "--import nowhere",
        "--learning-rat 1",
        "--discount 2",
        "--config memory-lstn",
        "--config foreign.yaml",
        "--resume nowhere",
        "--resume foreign.safetensors",
        "--track comet",
    ],
    "evaluate.cli": [
        "nowhere",
        "minipacman-rmx",
        "foreign.safetensors",
        "empty",
        "--pretrained minipacman",
        "--episodes 0 minipacman-rmc",
        "minipacman-rmc --env minipackman",
        "archive.zip",
    ],
    "evaluate.watch": ["nowhere", "minipacman-rmc --out x.avi", "minipacman-rmc --env minipackman"],
    "evaluate.export": ["nowhere x.safetensors", "minipacman-rmc x.pt"],
    "evaluate.plot": ["", "nowhere"],
    "evaluate.compare": ["", "nowhere", "--agents minipacman-rmx", "--cores lstmm", "--cores rmc -- --env minipackman"],
    "train.sweep.cli": ["", "minipacmam", "minipacman --set core=lstmm", "minipacman --trials 0"],
    "train.bench.cli": ["--env minipackman", "--core lstmm", "--repeats 0", "--backends trito"],
}


@pytest.mark.slow
def test_help_and_refusals_import_nothing_heavy(tmp_path: Path) -> None:
    """In one process: what one command imported, the next would show too."""
    (tmp_path / "foreign.yaml").write_text("learning_rate: fast")
    (tmp_path / "foreign.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (tmp_path / "archive.zip").write_bytes(b"")
    (tmp_path / "empty").mkdir()
    calls = {module: HELP + refused for module, refused in COMMANDS.items()}
    command = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    output, lines = result.stdout.splitlines(), result.stderr.splitlines()
    for module, refused in COMMANDS.items():
        statuses = [line for line in output if line.startswith(f"STATUS {module} ")]
        assert statuses == [f"STATUS {module} 0"] * len(HELP) + [f"STATUS {module} 2"] * len(refused)
        assert f"HEAVY {module} []" in output
    assert len(lines) == sum(map(len, COMMANDS.values())), "one line each"
    assert all(line.startswith("rmc-") for line in lines)
    for line, (guess, answer) in zip(lines, GUESSES.items(), strict=False):
        assert answer in line, guess


@pytest.mark.slow
def test_training_and_evaluation_do_not_import_what_takes_seconds(tmp_path: Path) -> None:
    small = "--core rmc --mem-slots 3 --head-size 4 --encoder-sizes 8 --num-envs 4 --unroll-length 5"
    small += " --total-frames 40 --no-video --eval-episodes 2"
    envs = ("recall", "program-copy", "boxworld", "memory-s7")  # their encoders differ; the last one needs minigrid
    program = (
        "import sys; from rmc_agents.train import cli; from rmc_agents.evaluate import cli as evaluate\n"
        f"for env in {envs}:\n"
        f"    status = cli.main({small.split()} + ['--env', env, '--run-dir', env])\n"
        "    assert not status and not evaluate.main([env, '--episodes', '2', '--max-steps', '20'])\n"
        "    slow = {'torch._dynamo', 'sympy', 'scipy.stats', 'scipy.special', 'minigrid'} & set(sys.modules)\n"
        "    assert slow <= ({'minigrid'} if env == 'memory-s7' else set()), (env, slow)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_the_first_help_lists_what_one_uses_first(capsys: pytest.CaptureFixture[str]) -> None:
    def shown(flag: str) -> str:
        with pytest.raises(SystemExit):
            train.main([flag])
        return " ".join(capsys.readouterr().out.split())

    first, every = shown("--help"), shown("--help-all")
    for word in ("--env minipacman", "--import MODULE", "memory-s13-random", "minipacman-rmc", "--help-all"):
        assert word in first
    assert "--adam-epsilon" not in first
    assert "--adam-epsilon" in every


def test_help_shows_arguments_flags_values_and_choices(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        export.main(["--help"])
    usage, *lines = capsys.readouterr().out.splitlines()
    assert usage == "usage: rmc-export RUN|CHECKPOINT [OUT] [FLAGS]"
    first_words = {
        " ".join(line.split("  ")[1].split()) for line in lines if line[:3].strip() and line.startswith("  ")
    }
    assert {"RUN|CHECKPOINT", "--format safetensors|onnx|torch", "--episodes 200", "--env NAME"} <= first_words
    assert max(len(line) for line in lines) <= shutil.get_terminal_size().columns
    with pytest.raises(SystemExit):
        train.main(["--help-all"])
    text = " ".join(capsys.readouterr().out.split())
    assert "--precision float32" in text
    assert "One of float32, bf16." in text
    assert "--[no-]video Record a video at the end. Default: on." in text


def test_the_package_lists_its_commands() -> None:
    result = subprocess.run([sys.executable, "-m", "rmc_agents"], capture_output=True, text=True, check=True)
    listed = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  rmc-")]
    scripts = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert all(f"{name} = " in scripts for name in listed)
    assert {"rmc-train", "rmc-evaluate", "rmc-bench"} <= set(listed)
