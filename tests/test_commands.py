"""What all commands share: how they end, and how they print numbers and paths."""

import gc
import io
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from rmc_agents import __version__, commands
from rmc_agents.command_line import (
    console,
    importing,
    interrupted_by_stops,
    parsing,
    quoted,
    run,
    say,
    show,
    signal_of,
    stop_signals,
)
from rmc_agents.command_line.parsing import parse, sources
from rmc_agents.commands import COMMANDS
from rmc_agents.config import Config
from rmc_agents.files import replacing
from rmc_agents.formatting import decimals, with_interval
from rmc_agents.train.cli import Arguments

IMPORTS = "import signal, sys; from rmc_agents import command_line;"


@pytest.mark.parametrize("name", [*COMMANDS, "rmc-agents"])
def test_a_script_is_its_command(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (script,) = entry_points(group="console_scripts", name=name)
    monkeypatch.setattr(sys, "argv", [name, "--version"])
    with suppress(SystemExit):
        script.load()()
    assert capsys.readouterr().out == f"{name} {__version__}\n"


def test_ctrl_c_while_a_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(module: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "import_module", interrupted)
    assert commands.rmc_train() == 130
    assert capsys.readouterr().err == "rmc-train: interrupted\n"


@pytest.mark.parametrize(
    ("within", "opened", "status"),
    [
        ("contextlib.nullcontext()", os.pipe, 141),
        ("contextlib.nullcontext()", os.openpty, 129),
        ("Blame('Env', 'reset()')", os.pipe, 141),
    ],
)
def test_a_command_whose_output_is_closed_ends_silently(
    within: str, opened: Callable[[], tuple[int, int]], status: int
) -> None:
    """Also where an environment is compiled, which is announced."""
    program = f"""{IMPORTS} import contextlib; from rmc_agents.envs.blame import Blame
def main():
    with {within}:
        command_line.say(command_line.console(), 'much' * 100)
    print('much' * 100)
    return 0
sys.exit(command_line.run('rmc-test', main))"""
    read, write = opened()
    os.close(read)
    ended = subprocess.run([sys.executable, "-c", program], stdout=write, stderr=subprocess.PIPE, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (status, b"")


@pytest.mark.parametrize(("action", "number", "status"), [("SIG_DFL", "SIGHUP", 129), ("SIG_IGN", "SIGHUP", 0)])
def test_a_closed_terminal_stops_a_command_but_not_one_of_nohup(action: str, number: str, status: int) -> None:
    program = f"""{IMPORTS}
signal.signal(signal.SIGHUP, signal.{action})
def main():
    with command_line.interrupted_by_stops():
        signal.raise_signal(signal.{number})
    return 0
sys.exit(command_line.run('rmc-test', main))"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=False).returncode == status


def test_sigterm_lets_a_command_clean_up(tmp_path: Path) -> None:
    def work() -> int:
        with replacing(tmp_path / "film.mp4"):
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        return 0

    assert run("rmc-x", work) == 128 + signal.SIGTERM
    assert not list(tmp_path.iterdir())


def test_an_interrupt_during_a_compilation_is_not_lost() -> None:
    def _raw_object_cache_notify() -> None:  # llvmlite calls one of this name from C
        signal.raise_signal(signal.SIGTERM)

    with interrupted_by_stops():
        _raw_object_cache_notify()
        with pytest.raises(KeyboardInterrupt) as interrupt:
            time.sleep(60)
    assert signal_of(interrupt.value) == signal.SIGTERM


def test_an_interrupt_of_a_users_own_is_ctrl_c() -> None:
    for interrupt in (KeyboardInterrupt(), KeyboardInterrupt("by", "me"), KeyboardInterrupt(signal.SIGINT)):
        assert signal_of(interrupt) == signal.SIGINT
    assert signal_of(KeyboardInterrupt(signal.SIGTERM)) == signal.SIGTERM


def test_the_collector_rests_during_imports_alone() -> None:
    with importing():
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_file_is_no_terminal_whatever_the_environment_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert not console().is_interactive


def test_a_signal_with_a_handler_in_c_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    own = signal.getsignal
    monkeypatch.setattr(signal, "getsignal", lambda which: None if which == signal.SIGTERM else own(which))
    assert signal.SIGTERM not in stop_signals()
    assert signal.SIGINT in stop_signals()


def test_scores_have_three_significant_digits() -> None:
    assert [decimals(score) for score in (0.0, 0.0123, -0.5, 1.0, 14.8, 540.0, float("nan"))] == [1, 4, 3, 2, 1, 1, 1]
    assert decimals(0.5, -20.0) == 1
    assert with_interval(0.951, (0.9, 1.0)) == "0.951 (0.900 to 1.000)"
    assert with_interval(-20.66, None) == "-20.7"


def test_names_are_printed_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("core a:factory:")
    assert capsys.readouterr().out == "core a:factory:\n"


@pytest.mark.parametrize("width", [10, 40])
def test_no_number_of_a_table_is_cut(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("what", "agent", "uniform random", "settings")
    table.columns[-1].overflow = "fold"
    cells = ("mean return of something", "-0.990 (-0.999 to -0.970)", "1,234,567", "a_path/without/any/blank")
    table.add_row(*cells)
    show(Console(width=width), table)
    printed = capsys.readouterr().out
    assert all(word in printed for cell in cells[:3] for word in cell.split())


def test_characters_that_the_output_lacks_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), "ascii"))
    assert run("rmc-test", lambda: print("1 \xb7 2") or 0) == 0  # type: ignore[func-returns-value]
    assert sys.stdout.buffer.getvalue() == b"1 ? 2\n"  # type: ignore[attr-defined]


def test_a_name_from_a_file_does_not_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def fail() -> int:
        say(console(), "an agent \x1b[31m\u009b1m of\n2 lines")
        table = Table(title="a\x1b[2J")
        table.add_row("b\x1b[2J")
        show(console(), table)
        assert logging.lastResort is not None
        logging.lastResort.handle(logging.makeLogRecord({"msg": "skipped: c\x1b[2J", "levelno": logging.WARNING}))
        raise ValueError("an agent \x1b[31m")

    assert run("rmc-x", fail) == 2
    output = capsys.readouterr()
    assert output.out.startswith("an agent ?[31m?1m of\n2 lines\n")
    assert output.err == "skipped: c?[2J\nrmc-x: an agent ?[31m\n"
    assert all(name in output.out for name in ("a?[2J", "b?[2J"))
    assert "\x1b" not in output.out + output.err


def test_paths_are_quoted_as_a_shell_reads_them() -> None:
    assert [quoted(Path(name)) for name in ("runs/a", "my runs/a")] == ["runs/a", "'my runs/a'"]


def test_none_is_read_as_no_value() -> None:
    found = sources(["--run-dir", "None", "--resume", "None", "--track", "None"])
    assert found.run_dir is found.resume is found.track is None


def test_stages_are_arguments_or_a_list() -> None:
    stages = "{env_kwargs: {size: 1}, frames: 1}", "{env_kwargs: {size: 2}, frames: 2}"
    for words in (stages, [f"[{', '.join(stages)}]"]):
        parsed = parse(Arguments, ["--curriculum", *words], "test", "", Arguments())
        assert [stage["frames"] for stage in parsed.env.curriculum] == [1, 2]


def test_the_home_folder_is_meant_by_a_tilde() -> None:
    assert sources(["--run-dir=~/run"]).run_dir == Path.home() / "run"
    assert parse(Arguments, ["--run-dir=~/run"], "test", "", Arguments()).run_dir == Path.home() / "run"
    assert sources(["--run-dir=~nobody-here/run"]).run_dir == Path("~nobody-here/run")


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("memory-lstm", "presets go after --config"),
        ("minipacman-hunt", "environments go after --env"),
        ("/", "a run goes on with --resume RUN"),
        ("--no-vidoe", "did you mean --no-video?"),
    ],
)
def test_an_unknown_word_has_a_hint(word: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(Arguments, [word], "test", "", Arguments())
    assert f"test: Unrecognized options: {word}; {hint} (see" in capsys.readouterr().err


def test_a_path_in_a_message_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / ("Run" * 40)
    run.mkdir()
    with pytest.raises(SystemExit):
        parse(Arguments, [str(run)], "test", "", Arguments())
    assert f"test: Unrecognized options: {run}; a run goes on with --resume RUN (see" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "hint"),
    [
        (["--lr", "3"], "Unrecognized options: --lr, 3; did you mean --learning-rate?"),
        (["--n-steps=5", "--gamma=0.9"], "did you mean --discount and --unroll-length?"),
    ],
)
def test_names_of_other_libraries_have_a_hint(flags: list[str], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(Config, flags, "test", "")
    assert hint in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"settings: there is no setting 'gamma'; did you mean 'discount'\?"):
        Config().updated({"gamma": 0.9})


def test_integers_are_read_as_in_yaml(capsys: pytest.CaptureFixture[str]) -> None:
    config = parse(Config, ["--total-frames", "2.5e6", "--ppo-minibatches", "1_0", "--key-size", "1e1"], "test", "")
    assert (config.train.total_frames, config.train.ppo_minibatches, config.core.key_size) == (2_500_000, 10, 10)
    for wrong in ("1.5e0", "1e-1", "1e400", "True"):
        with pytest.raises(SystemExit):
            parse(Config, ["--total-frames", wrong], "test", "")
        assert f"expected an integer, got '{wrong}'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "given",
    [
        "--env recall --no-video --encoder-sizes 3 4 --key-size 1e1 --import a --import b:c --env-kwargs a=1 b=[2,3]",
        "--mem-slots 0",
        "--envs 3",
        "recall --core lstm",
    ],
)
def test_the_fields_of_the_given_flags_are_enough(
    given: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = []
    for _ in range(2):
        with suppress(SystemExit):
            found.append(parse(Arguments, given.split(), "test", "", Arguments()))
        found.append(capsys.readouterr().err)
        monkeypatch.setattr(parsing, "_parse_given", lambda *_: None)
    assert found[: len(found) // 2] == found[len(found) // 2 :]
