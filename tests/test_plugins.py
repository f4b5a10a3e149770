"""Users' modules: imported only if named on the command line, never because a file names them."""

import shutil
import sys
from functools import partial
from pathlib import Path

import gymnasium as gym
import pytest
import torch

from helpers import forked
from rmc_agents import plugins
from rmc_agents.command_line import parsing, run
from rmc_agents.command_line.values import assignments
from rmc_agents.config import Config, CoreConfig
from rmc_agents.cores import Feedforward, make_core, register_core
from rmc_agents.train import cli

MODULE = """
import subprocess
import torch
from rmc_agents.cores import LSTM, Core

class Own(LSTM):
    def __init__(self, input_size, width=4):
        super().__init__(input_size, hidden_size=width)

    func = torch.relu  # a partial has such an attribute too
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of a module in the current folder."""
    name = f"own_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    monkeypatch.setattr(plugins, "_typed", {})
    return name


def test_a_class_is_found_in_a_module_that_was_typed_and_in_no_other(module: str) -> None:
    name = f"{module}:Own"
    assert plugins.find(name) is None
    with pytest.raises(ValueError, match=f"add --import {module}"):
        make_core(CoreConfig(core=name), 3)
    assert module not in sys.modules
    plugins.load([], name)
    core = make_core(CoreConfig(core=name, core_args={"width": 6}), 3)
    assert core.output_size == 6
    with pytest.raises(ValueError, match=r"core_args: .*'widht'"):
        make_core(CoreConfig(core=name, core_args={"widht": 6}), 3)
    with pytest.raises(ValueError, match=r"that own_.* defines"):
        plugins.find(f"{module}:subprocess")
    assert plugins.flags() == ["--import", module]


def test_a_module_without_an_environment_is_refused(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--env", f"{module}:"]) == 2
    assert f"--env leaves the environment of {module} to you: add --env {module}:NAME" in capsys.readouterr().err


def test_a_file_cannot_have_any_function_of_a_module_called(module: str) -> None:
    with Path(f"{module}.py").open("a") as file:
        file.write("\ndef clean(days, folder='.'):\n    raise AssertionError(folder)\n\nclass Cache:\n    pass\n")
    for kind, name in (("core", f"{module}:clean"), ("env", f"{module}:clean"), ("env", f"{module}:Cache")):
        Path("file.yaml").write_text(f"env: recall\n{kind}: {name}" if kind == "core" else f"env: {name}")
        plugins.load([module])
        with pytest.raises(ValueError, match=f"only a file names {name}, .* add --import {name}"):
            parsing.check_names(Config().updated_from_yaml("file.yaml"), "file.yaml")
    plugins.load([f"{module}:clean"])
    assert callable(plugins.find(f"{module}:clean"))
    assert plugins.flags() == ["--import", f"{module}:clean"]
    with pytest.raises(ValueError, match=f"{module}:clear: expected a class or a function .* did you mean 'clean'"):
        plugins.load([f"{module}:clear"])


def test_flags_that_are_suggested_for_names_of_a_file_find_them(module: str) -> None:
    with Path(f"{module}.py").open("a") as file:
        file.write("\ndef build(input_size):\n    return Own(input_size)\n")
        file.write(
            f"\nimport gymnasium\ngymnasium.register('{module}-v0', 'gymnasium.envs.classic_control:CartPoleEnv')\n"
        )
    flags = plugins.flags_of("lstm", f"{module}:build", "text:a.txt", f"{module}:{module}-v0-stack2")
    assert flags == f" --import {module}:build --import {module}:{module}-v0"
    plugins.load(flags.replace("--import", "").split())
    assert make_core(CoreConfig(core=f"{module}:build"), 3).output_size == 4
    plugins.check_named(f"{module}:{module}-v0-stack2", "config.yaml")


def test_a_partial_of_a_class_of_the_module_is_found(module: str) -> None:
    with Path(f"{module}.py").open("a") as file:
        file.write("\nfrom functools import partial\n\nWide = partial(Own, width=6)\n")
    plugins.load([module])
    assert make_core(CoreConfig(core=f"{module}:Wide"), 3).output_size == 6


@pytest.mark.parametrize("name", ["Own", "MODULE"])
def test_a_name_without_its_module_is_explained(name: str, module: str) -> None:
    plugins.load([module])
    config = Config().updated({"core": name.replace("MODULE", module)}, "flags")
    with pytest.raises(ValueError, match=r"there is no core .* your own is MODULE:NAME, or registered by"):
        config.check_parts()


def test_what_a_module_imported_from_elsewhere_is_not_its_own(module: str) -> None:
    plugins.load([module])
    with pytest.raises(ValueError, match="defines"):
        plugins.find(f"{module}:LSTM")


@pytest.mark.parametrize("error", ["RuntimeError('mine')", "SystemExit(4)", "ValueError('mine')"])
def test_a_fault_in_the_code_of_a_module_is_reported_as_its_own(
    error: str, module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path(f"{module}.py").open("a") as file:
        file.write(f"\n    def cell(self, x, state):\n        raise {error}\n\n    scan = Core.scan\n")

    def main() -> int:
        plugins.load([module])
        core = make_core(CoreConfig(core=f"{module}:Own"), 3)
        core(torch.zeros(2, 1, 3))
        return 0

    assert run("rmc-test", main) == 2
    *shown, last = capsys.readouterr().err.splitlines()
    name, message = error.rstrip("')").replace("('", "(").split("(")
    assert last.startswith(f"rmc-test: {module} failed: {name}: {message} (")
    assert f"{module}.py, line 13, in cell) (RMC_TRACEBACK=1" in last
    assert sum(line.startswith("  File") for line in shown) == 1


@pytest.mark.parametrize("error", ["KeyError('mine')", "RuntimeError('tile was not allocated')"])
@pytest.mark.parametrize("place", ["{}_space.deep.core", "{}_helper"], ids=["without __init__", "inherited"])
def test_a_fault_elsewhere_in_a_users_code_is_theirs_too(
    place: str, error: str, module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    at_fault = place.format(module)
    file = Path(*at_fault.split(".")).with_suffix(".py")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{Path(f'{module}.py').read_text()}\n    def cell(self, x, state):\n        raise {error}\n")
    Path(f"{module}_user.py").write_text(f"from {at_fault} import Own\nclass Mine(Own): pass")

    def main() -> int:
        plugins.load([f"{module}_user"])
        core = make_core(CoreConfig(core=f"{module}_user:Mine"), 3)
        core.cell(torch.zeros(1, 3), core.initial_state(1))
        return 0

    assert run("rmc-test", main) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(f"rmc-test: {at_fault} failed: {error.partition('(')[0]}: ")


def test_a_fault_of_the_standard_library_is_nobodys(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.load([module])
    monkeypatch.chdir(Path(shutil.__file__).parent)  # as in a home folder that Python is installed in
    with pytest.raises(FileNotFoundError) as caught:
        shutil.copyfile("nowhere", "there")
    plugins.blame(caught.value)


def test_what_is_neither_class_nor_function_is_named(module: str) -> None:
    with Path(f"{module}.py").open("a") as file:
        file.write("\nsize = 3\n")
    plugins.load([module])
    for name, got in (("size", "an object of int"), ("sise", "no such name")):
        with pytest.raises(ValueError, match=f"{module}:{name}: expected a class or a function .*, got {got}"):
            plugins.find(f"{module}:{name}")


def test_an_unfinished_core_is_refused(module: str) -> None:
    Path(f"{module}.py").write_text("from rmc_agents.cores import Core\nclass Own(Core): pass")
    plugins.load([module])
    with pytest.raises(ValueError, match=f"core: {module}:Own lacks cell, initial_leaves, which a Core has to define"):
        make_core(CoreConfig(core=f"{module}:Own"), 3)


def test_a_module_that_ends_the_program_is_reported(module: str) -> None:
    Path(f"{module}.py").write_text("import sys\nsys.exit(4)")
    with pytest.raises(plugins.PluginError, match=r"importing own_.* failed: SystemExit: 4"):
        plugins.load([module])


def test_main_is_refused_as_other_processes_have_another() -> None:
    with pytest.raises(ValueError, match=r"^__main__:Own: expected the name of a module in a file; in Python"):
        plugins.load([], "__main__:Own")


@pytest.mark.parametrize("path", ["./own", "own/core.py"])
def test_a_path_in_place_of_a_module_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match=f"^{path}: expected a module's name, without folders, got '{path}'"):
        plugins.load([path])


def test_a_file_in_place_of_a_module_is_refused(module: str) -> None:
    with pytest.raises(plugins.PluginError, match=r"importing own_.*; expected the module's name without \.py"):
        plugins.load([], f"{module}.py:Own")


@pytest.mark.slow
def test_another_process_has_the_same_modules_and_registered_cores(module: str, tmp_path: Path) -> None:
    import cloudpickle

    class Registered(Feedforward):
        pass

    plugins.load([module])
    register_core("carried-core", Registered)
    gym.register("Given-v0", entry_point=lambda: None)
    calls = plugins.flags, partial(make_core, CoreConfig(core="carried-core"), 3), partial(gym.spec, "Given-v0")
    carried = tmp_path / "carried"
    carried.write_bytes(cloudpickle.dumps([plugins.carried(call, "Given-v0") for call in calls]))
    elsewhere = f"import os, pickle; os.chdir('/'); sys.path = [each for each in sys.path if each != {str(tmp_path)!r}]"
    program = f"{elsewhere}; print(*(call() for call in pickle.load(open(sys.argv[1], 'rb'))), sep='\\n')"
    flags, core, *_, spec = forked.run(program, str(carried), log=tmp_path / "log").splitlines()
    assert flags == str(["--import", module])
    assert core.startswith("Registered(")
    assert "id='Given-v0'" in spec


def test_no_settings_file_imports_a_module(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    for setting in ("core", "encoder", "env"):
        Path("settings.yaml").write_text(f"{setting}: {module}:Own")
        assert cli.main(["--config", "settings.yaml", "--run-dir", "run"]) == 2
        output = capsys.readouterr().err
        assert f"add --import {module}" in output
        assert output.count("\n") == 1
    assert module not in sys.modules


def test_names_with_a_colon_that_are_no_module() -> None:
    assert plugins.module_of("my-env:Foo-v0") == "my-env"  # gymnasium would import it
    assert plugins.module_of("os:my-env:Foo-v0") == "os:my-env"
    assert plugins.module_of("text-words-512:/a:b") == ""
    assert [plugins.module_of(name) for name in ("text:/a/b", "rmc_agents.envs:X-v0", "minipacman", "a.b:X")] == [
        "",
        "",
        "",
        "a.b",
    ]


def test_arguments_are_read_as_yaml() -> None:
    read = assignments(["size=7", "decay=0.5", "mode=hard", "deep=[1, 2]", "on=true", "none="])
    assert read == {"size": 7, "decay": 0.5, "mode": "hard", "deep": [1, 2], "on": True, "none": None}
    with pytest.raises(ValueError, match="expected NAME=VALUE"):
        assignments(["size"])
    with pytest.raises(ValueError, match="expected spaces between one NAME=VALUE and the next, got 'a=3,b=true'"):
        assignments(["a=3,b=true"])
    assert assignments(["a={b: 1,c: d=2}", "e='x,y=1'"]) == {"a": {"b": 1, "c": "d=2"}, "e": "x,y=1"}
    with pytest.raises(ValueError, match="expected each name once, got size again"):
        assignments(["size=7", "size=8"])


def test_a_folder_is_no_installed_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wandb leaves one of its name where it has run."""
    (tmp_path / "no_such_package").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    assert [plugins.is_installed(name) for name in ("no_such_package", "another", "torch")] == [False, False, True]
