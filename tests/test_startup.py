"""Help, and errors that can be found without torch, are printed before any slow import."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

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
HELP = ["--help", "--help-all", "--version"]
COMMANDS = {
    "train.cli": [
        "--env minipackman",
        "--env ALE/Pong-v5",
        "--env Taxi-v3",
        "--env nowhere:X-v0",
        "--core lstmm",
        "--core nowhere:Core",
        "--encoder convv",
        "--import nowhere",
        "--learning-rat 1",
        "--discount 2",
        "--core-args width",
        "--config memory-lstn",
        "--config foreign.yaml",
        "--resume nowhere",
        "--resume foreign.safetensors",
        "--init-from minipacman-rmx",
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


def run(calls: dict[str, list[str]], folder: Path) -> tuple[list[str], str]:
    """The output and the errors of a process that called each command once with each of the given words."""
    (folder / "foreign.yaml").write_text("learning_rate: fast")
    (folder / "foreign.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    (folder / "archive.zip").write_bytes(b"")
    (folder / "empty").mkdir(exist_ok=True)
    command = [sys.executable, "-c", PROGRAM, json.dumps(calls)]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return result.stdout.splitlines(), result.stderr


@pytest.mark.slow
def test_help_and_refusals_import_nothing_heavy(tmp_path: Path) -> None:
    """In one process: what one command imported, the next would show too."""
    output, errors = run({module: HELP + refused for module, refused in COMMANDS.items()}, tmp_path)
    for module, refused in COMMANDS.items():
        statuses = [line for line in output if line.startswith(f"STATUS {module} ")]
        assert statuses == [f"STATUS {module} 0"] * len(HELP) + [f"STATUS {module} 2"] * len(refused)
        assert f"HEAVY {module} []" in output
    lines = errors.splitlines()
    assert len(lines) == sum(map(len, COMMANDS.values())), "one line each"
    assert all(line.startswith("rmc-") for line in lines)


@pytest.mark.slow
def test_training_and_evaluation_do_not_import_what_takes_seconds(tmp_path: Path) -> None:
    small = "--env recall --core rmc --num-envs 4 --unroll-length 5 --total-frames 40 --no-video --eval-episodes 2"
    program = (
        "import sys; from rmc_agents.train import cli; from rmc_agents.evaluate import cli as evaluate\n"
        f"status = cli.main({small.split()} + ['--run-dir', 'run']) + evaluate.main(['run', '--episodes', '2'])\n"
        "slow = {'torch._dynamo', 'sympy', 'scipy.stats', 'scipy.special', 'minigrid'} & set(sys.modules)\n"
        "assert not status and not slow, slow"
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True, capture_output=True)


GUESSES = {
    "--env ALE/Pong-v5": "ale_py:ALE/Pong-v5",
    "--env Taxi-v3": "did you mean 'Taxi-v4'?",
    "--core lstmm": "did you mean 'lstm'?",
    "--core nowhere:Core": "importing nowhere failed",
    "--env minipackman": "did you mean 'minipacman'?",
    "--init-from minipacman-rmx": "minipacman-rmc",
    "--core-args width": "expected NAME=VALUE, got 'width'",
    "--mem-slots many": "expected an integer, got 'many'",
    "--discount high": "expected a number, got 'high'",
    "--key-size large": "expected {None}|INT, got 'large'",
    "--video false": "switches take no value",
    "--diagnostics 1": "switches take no value",
    "--core own_core.Decay": "did you mean 'own_core:Decay'",
    "--env own_env.Corridor": "did you mean 'own_env:Corridor'",
    "--env poem.txt": "text:PATH",
}


@pytest.mark.slow
def test_likely_wrong_guesses_are_answered(tmp_path: Path) -> None:
    _, errors = run({"train.cli": list(GUESSES)}, tmp_path)
    for line, (guess, answer) in zip(errors.splitlines(), GUESSES.items(), strict=True):
        assert answer in line, guess


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


def test_the_package_lists_its_commands() -> None:
    result = subprocess.run([sys.executable, "-m", "rmc_agents"], capture_output=True, text=True, check=True)
    listed = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  rmc-")]
    scripts = (Path(__file__).parent.parent / "pyproject.toml").read_text()
    assert all(f"{name} = " in scripts for name in listed)
    assert {"rmc-train", "rmc-evaluate", "rmc-bench"} <= set(listed)
