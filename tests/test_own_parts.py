"""Users' cores, encoders and environments go through every command, by command line and in Python."""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.wrappers import TimeLimit
from rich.console import Console
from torch import nn

import rmc_agents as rmc
from helpers.own_parts import Flat, ManyWalks, Slots, Walk
from helpers.runs import assert_same
from rmc_agents import plugins
from rmc_agents.collect import Collector
from rmc_agents.envs.registry import make_vector_env
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.evaluate import compare, export, plot, watch
from rmc_agents.evaluate.episodes import PlaySettings, evaluate_beside_random
from rmc_agents.runs.saved import weights_like
from rmc_agents.spaces import SpaceSpec
from rmc_agents.stream import NEWER, Lanes
from rmc_agents.train import cli
from rmc_agents.train.bench import cli as bench
from rmc_agents.train.distributed import shares
from rmc_agents.train.impala.actors import Actor, ParcelReader, pack_weights
from rmc_agents.train.impala.trainer import concatenated
from rmc_agents.train.loop import Progress
from rmc_agents.tree_checks import check_like, unbounded
from rmc_agents.types import at, map_leaves

PARTS = "helpers.own_parts"
CORE = f"--core {PARTS}:Slots --core-args width=5 --encoder {PARTS}:Flat --encoder-args width=6".split()
ENV = f"--env {PARTS}:Walk --env-kwargs length=2".split()
SMALL = ["--num-envs", "4", "--unroll-length", "5"]
FLAGS = [*SMALL, *["--total-frames", "60", "--eval-episodes", "2", "--no-video"]]
SETTINGS = {"core": "gru", "hidden_size": 8, "encoder_sizes": [8], "num_envs": 3, "unroll_length": 7} | {
    "learning_rate_schedule": "constant",
    "eval_episodes": 2,
    "video": False,
}
QUIET = Console(quiet=True)
SPEC = rmc.SpaceSpec.of(Walk())


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Modules and ids are registered again in each test, which runs in its own folder."""
    monkeypatch.setattr(plugins, "_typed", {})
    monkeypatch.setattr(gym, "registry", gym.registry)
    for env_id in [name for name in gym.registry if name in ("Walk", "ManyWalks") or name.startswith("own/")]:
        monkeypatch.delitem(gym.registry, env_id)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of own parts."""
    path = tmp_path_factory.mktemp("own") / "run"
    flags = [*CORE, *ENV, *FLAGS, "--diagnostics", "--log-every", "1e-9", "--run-dir", str(path)]
    assert cli.main(flags) == 0
    return path


COMMANDS = {
    "evaluate": lambda run: evaluate_cli.main([run, "--episodes", "2", "--import", PARTS]),
    "ablate": lambda run: evaluate_cli.main([run, *["--episodes", "2", "--ablate-memory", "--import"], PARTS]),
    "film": lambda run: watch.main([run, "--out", "film.gif", "--max-steps", "5", "--import", PARTS]),
    "page": lambda run: watch.main([run, "--out", "page.html", "--max-steps", "5", "--import", PARTS]),
    "export": lambda run: (
        export.main([run, "own.safetensors", "--episodes", "2", "--import", PARTS])
        or evaluate_cli.main(["own.safetensors", "--episodes", "2", "--import", PARTS])
    ),
    "plot": lambda run: plot.main([run, "--out", "curve.png"]),
    "compare": lambda run: compare.main([run]),
    "init-from": lambda run: cli.main([*CORE, *ENV, *FLAGS, "--init-from", run, "--run-dir", "second"]),
    "bench": lambda run: bench.main([*CORE, *ENV, *SMALL, "--repeats", "1", "--seconds", "0"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_own_parts(command: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert COMMANDS[command](str(run)) == 0, capsys.readouterr().err
    if command == "bench":  # this core does not report its products
        output = capsys.readouterr().out
        assert "products by torch.mm" not in output
        assert " 0.0 GFLOP/s" not in output


def test_settings_that_a_built_in_part_does_not_have_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for part in ("core", "encoder"):
        assert cli.main(["--env", "recall", f"--{part}-args", "width=5", *FLAGS]) == 2
        assert f"{part}_args: expected none for {part} " in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["Walk", "ManyWalks", "ManyWalks-stack2"])
def test_a_class_is_an_environment_on_the_command_line(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = ["--run-dir", "run", "--core", "none"]
    assert cli.main(["--env", f"{PARTS}:{kind}", "--env-kwargs", "length=2", *FLAGS, *run]) == 0
    assert cli.main(["--resume", "run", "--total-frames", "80", "--import", PARTS]) == 0
    assert "not exact" not in capsys.readouterr().out
    assert cli.main(["--env", f"{PARTS}:np", *FLAGS]) == 2
    assert "expected a class or a function" in capsys.readouterr().err
    assert cli.main(["--env", f"{PARTS}:Unlike", *FLAGS]) == 2
    assert f"{PARTS} neither defines 'Unlike' nor registers it with gymnasium" in capsys.readouterr().err


def test_a_constructor_without_render_mode_is_called_without() -> None:
    plugins.load([], env=f"{PARTS}:Drawn")
    env = rmc.make_env(f"{PARTS}:Drawn", 1, render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render()[0].shape == (40, 40, 3)


def test_what_cannot_be_drawn_is_filmed_by_its_observations(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--env", f"{PARTS}:Unseen", "--core", "none", *SMALL, "--total-frames", "20", "--eval-episodes", "0"]
    assert cli.main([*flags, "--run-dir", "run"]) == 0
    assert len(list(Path("run/videos").iterdir())) == 1
    assert "rmc-watch" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "typed", "meant"), [("core", "Slot", "Slots"), ("encoder", "Flta", "Flat"), ("env", "Wall", "Walk")]
)
def test_a_typo_in_the_name_of_an_own_part_gets_a_suggestion(
    flag: str, typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([f"--{flag}", f"{PARTS}:{typed}", *([] if flag == "env" else ["--env", "recall"]), *FLAGS]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{PARTS}:{typed}" in line
    assert line.endswith(f"; did you mean {meant!r}?")


@pytest.mark.parametrize("unroll", [5, 20])
def test_a_run_that_failed_continues_exactly_where_it_was_saved_before(
    unroll: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With 20 steps the first update fails, and the environment's state is lost; with 5 the first one is saved."""
    flags = ["--env", f"{PARTS}:Failing", "--core", "none", *FLAGS, "--unroll-length", str(unroll)]
    assert cli.main([*flags, "--run-dir", "run"]) == 2
    assert cli.main(["--resume", "run", "--import", PARTS]) == 2
    restarts = "the checkpoint has no state of the environment: its episodes restart"
    assert (restarts in capsys.readouterr().out) == (unroll == 20)


@pytest.mark.slow
def test_a_run_continues_in_workers_with_new_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--env", f"{PARTS}:Walk", *FLAGS, "--run-dir", "run", "--core", "none"]) == 0
    workers = ["--env-workers", "1", "--total-frames", "80", "--import", PARTS]
    assert cli.main(["--resume", "run", *workers]) == 0
    assert "with env_workers, states of environments cannot be saved: episodes restart" in capsys.readouterr().out


def test_a_file_cannot_name_what_the_user_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Though the module happens to be imported, no class or function of it is called."""
    assert PARTS in sys.modules
    Path("file.yaml").write_text(f"env: {PARTS}:Walk\n")
    assert cli.main(["--config", "file.yaml", *FLAGS]) == 2
    assert f"file.yaml names the environment '{PARTS}:Walk': importing {PARTS} runs its code" in capsys.readouterr().err
    with pytest.raises(ValueError, match=f"if you trust it, .*; in Python, pass env='{PARTS}:Walk'"):
        plugins.check_named(f"{PARTS}:Walk", "file.yaml")


def test_in_python_neither_a_file_nor_a_checkpoint_imports_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(".")
    Path("stranger.py").write_text(f"import gymnasium as gym\nfrom {PARTS} import Walk\ngym.register('Far-v0', Walk)\n")
    Path("file.yaml").write_text("env: stranger:Far-v0\n")
    named = "names the environment 'stranger:Far-v0': importing stranger runs its code"
    with pytest.raises(ValueError, match=f"file.yaml {named}"):
        rmc.train({"config": "file.yaml"} | SETTINGS, console=QUIET)
    with pytest.raises(ValueError, match=f"config {named}"):
        rmc.train(rmc.Config().updated_from_yaml("file.yaml").updated(SETTINGS), console=QUIET)
    assert "stranger" not in sys.modules
    small = {"config": "file.yaml", "total_frames": 42} | SETTINGS
    run = rmc.train(small, env="stranger:Far-v0", run_dir="run", console=QUIET)
    del sys.modules["stranger"], gym.registry["Far-v0"]  # as in another process
    plugins._typed.clear()
    with pytest.raises(ValueError, match=named):
        rmc.resume("run", {"total_frames": 84}, console=QUIET)
    assert "stranger" not in sys.modules
    again = rmc.resume("run", {"total_frames": 84}, env="stranger:Far-v0", console=QUIET)
    assert again.summary["frames"] == 84 > run.summary["frames"]


def test_parcels_of_impala_carry_a_plain_state() -> None:
    rmc.register_core("slots", Slots)
    config = {"algo": "impala", "env": "recall", "core": "slots", "unroll_length": 4, "lanes_per_actor": 3}
    actor = Actor(rmc.Config().updated(config, "test").settled(), 0)
    parcel = actor.act(0.0)._replace(version=0)
    opened = ParcelReader(parcel.rollout, actor.lanes.spec).open(parcel.to_bytes(), 0)
    assert type(opened.rollout.initial_state) is tuple
    (trace,) = concatenated([opened.rollout, parcel.rollout], torch.device("cpu")).initial_state
    assert trace.shape == (6, 3)
    infinite = parcel.rollout._replace(initial_state=(torch.full((3, 3), -torch.inf),))
    assert ParcelReader(parcel.rollout, actor.lanes.spec).open(parcel._replace(rollout=infinite).to_bytes(), 0)


# --- in Python -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [lambda: Walk, lambda: Walk(3), lambda: lambda: TimeLimit(Walk(), 5), lambda: ManyWalks, lambda: ManyWalks(3)],
    ids=["class", "object", "wrapped", "vector class", "vector object"],
)
def test_a_resumed_run_in_an_own_environment_is_exact(make: Any) -> None:
    settings = SETTINGS | {"eval_episodes": 0}
    whole = rmc.train(settings | {"total_frames": 84}, env=make(), run_dir="whole", console=QUIET)
    rmc.train(settings | {"total_frames": 42}, env=make(), run_dir="parts", console=QUIET)
    for env_id in [name for name in gym.registry if name.startswith("own/")]:
        del gym.registry[env_id]  # as in another process
    parts = rmc.resume("parts", {"total_frames": 84}, env=make(), console=QUIET)
    for one, other in zip(whole.agent.parameters(), parts.agent.parameters(), strict=True):
        assert torch.equal(one, other)
    assert parts.summary["frames"] == 84


def test_a_partial_is_known_by_what_it_calls_and_its_arguments_are_kept() -> None:
    made: list[int] = []

    class Noted(Walk):
        def __init__(self, length: int = 4) -> None:
            super().__init__(length)
            made.append(length)

    rmc.train(SETTINGS | {"total_frames": 21}, env=partial(Noted, length=2), run_dir="run", console=QUIET)
    rmc.resume("run", {"total_frames": 42}, env=Noted, console=QUIET)
    resumed = rmc.resume("run", {"total_frames": 63}, env=partial(Noted, length=2), console=QUIET)
    assert resumed.summary["evaluation"]["env"] == "own/Noted-v0 (length=2)"
    with pytest.raises(ValueError, match=r"env_kwargs: length: expected 3, as in the functools.partial, got 2"):
        rmc.resume("run", {"total_frames": 84}, env=partial(Noted, length=3), console=QUIET)
    assert {*made} == {2}


def test_a_partial_whose_arguments_no_file_can_hold_is_called_as_it_is() -> None:
    class Tagged(Walk):
        def __init__(self, tag: Any) -> None:
            super().__init__()
            assert isinstance(tag, tuple | set)

    for env in (partial(Walk, 2), partial(Tagged, tag={1}), partial(Tagged, tag=(1, 2))):
        run = rmc.train(SETTINGS | {"total_frames": 21}, env=env, console=QUIET)
        assert rmc.load(run.path).config.env.env_kwargs == {}


def test_a_run_with_a_given_class_can_be_resumed_by_the_class_name(capsys: pytest.CaptureFixture[str]) -> None:
    rmc.train(SETTINGS | {"total_frames": 21}, env=Walk, run_dir="run", console=QUIET)
    resume = ["--resume", "run", "--total-frames", "42"]
    assert cli.main([*resume, "--env", f"{PARTS}:ManyWalks"]) == 2
    assert "cannot change env" in capsys.readouterr().err
    assert cli.main([*resume, "--env", f"{PARTS}:Walk"]) == 0
    assert rmc.load("run").config.env.env == f"{PARTS}:Walk"  # so that later commands find it by --import
    with pytest.raises(ValueError, match=f"; pass env='{PARTS}:Walk'"):
        rmc.resume("run", {"total_frames": 63}, env=Walk, console=QUIET)


def test_the_environment_of_a_run_is_asked_for_if_several_have_its_name() -> None:
    settings = SETTINGS | {"total_frames": 21, "eval_episodes": 0}
    first = rmc.train(settings, env=Walk, console=QUIET)
    assert rmc.evaluate(rmc.load(first.path), episodes=1).episodes == 1
    other = rmc.train(settings, env=Walk(3), console=QUIET)
    for run in (first, other):
        with pytest.raises(
            ValueError, match="'own/Walk-v0' is ambiguous: several environments with this name were passed"
        ):
            rmc.evaluate(rmc.load(run.path), episodes=1)
    with pytest.raises(ValueError, match="several environments with this name were passed"):
        rmc.resume(first.path, {"total_frames": 42}, console=QUIET)
    assert rmc.evaluate(rmc.load(first.path), Walk, episodes=1).episodes == 1


def test_a_training_in_a_callback_leaves_the_environment_of_the_one_around_it() -> None:
    settings, lengths = SETTINGS | {"total_frames": 42, "eval_episodes": 0}, []

    def callback(progress: Progress) -> None:
        if progress.updates == 1:
            rmc.train(settings, env=lambda: Walk(9), run_dir="inner", console=QUIET)
        lengths.append(gym.make("own/lambda-v0").unwrapped.length)  # type: ignore[attr-defined]

    rmc.train(settings, env=lambda: Walk(3), run_dir="outer", callback=callback, console=QUIET)
    assert lengths == [3, 3]


def test_a_module_and_a_class_name_the_environment_whatever_was_made_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(".")
    for module, length in (("walks_a", 3), ("walks_b", 9)):
        lines = (
            f"from {PARTS} import Walk as Base\nclass Walk(Base):\n    def __init__(self): super().__init__({length})"
        )
        Path(f"{module}.py").write_text(lines)
        rmc.make_env(f"{module}:Walk").close()
    assert make_vector_env("walks_a:Walk", 1).unwrapped.envs[0].unwrapped.length == 3


def test_a_copy_of_an_environment_draws_the_video(capsys: pytest.CaptureFixture[str]) -> None:
    run = rmc.train(SETTINGS | {"total_frames": 21, "video": True}, env=Walk(3), run_dir="run", console=QUIET)
    assert run.summary["video"] is not None


@pytest.mark.parametrize("env", ["recall", f"{PARTS}:Walk"])
def test_commands_are_not_suggested_for_a_core_given_in_python(env: str, capsys: pytest.CaptureFixture[str]) -> None:
    rmc.register_core("slots", Slots)
    rmc.train(SETTINGS | {"core": "slots", "total_frames": 21}, env=env, run_dir="run")
    assert "rmc-evaluate" not in capsys.readouterr().out


def test_an_environment_is_closed_after_a_refusal() -> None:
    closed: list[int] = []

    class Closing(ManyWalks):
        def close_extras(self, **kwargs: Any) -> None:
            closed.append(self.num_envs)

    for settings, message in (
        ({"init_from": "recall-rmc"}, "the agent does not fit"),
        ({"encoder": "conv"}, "expected images"),
        ({"algo": "sb3-ppo", "encoder": "conv"}, "convolutions: expected images"),
    ):
        closed.clear()
        with pytest.raises(ValueError, match=message):
            rmc.train(SETTINGS | settings, env=Closing, console=QUIET)
        assert closed[-1] == SETTINGS["num_envs"], settings


def test_an_agent_of_another_environment_is_refused() -> None:
    agent = rmc.ActorCritic(SPEC, "gru")
    with pytest.raises(ValueError, match=r"agent: expected one for the environment's observations .*, got one for obs"):
        Collector(agent, rmc.make_env("recall", 2), unroll_length=3)
    with pytest.raises(ValueError, match=r"spec: expected a SpaceSpec, such as SpaceSpec.of\(env\), got Walk"):
        rmc.ActorCritic(Walk(), "gru")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"a name such as 'lstm', a Core, or .*; LSTM has no initial_state"):
        rmc.ActorCritic(SPEC, torch.nn.LSTM)
    with pytest.raises(ValueError, match="core: expected a name, a class, a function or a module, got int"):
        rmc.ActorCritic(SPEC, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"env: expected an environment, such as .*, got 'recall'"):
        rmc.SpaceSpec.of("recall")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"env: expected a vector environment, such as .*, got 'recall'"):
        Collector(agent, "recall", unroll_length=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"agent: expected parameters of torch.float32, .* got torch.float64"):
        Collector(agent.double(), rmc.make_env(Walk, 2), unroll_length=3)


@pytest.mark.parametrize("loss", ["a2c", "ppo", "vtrace"])
def test_a_loss_without_the_last_steps_output_is_refused(loss: str) -> None:
    agent = rmc.ActorCritic(SPEC, "gru")
    rollout = Collector(agent, rmc.make_env(Walk, 2), unroll_length=3).collect()
    output, _ = agent.unroll(at(rollout.steps, slice(-1)), rollout.initial_state)
    with pytest.raises(ValueError, match=r"output: expected that of all steps .* \[4, 2\], got \[3, 2\]"):
        getattr(rmc.losses, loss)(output, rollout, discount=0.99)
    output, _ = agent.unroll(rollout.steps, rollout.initial_state)
    with pytest.raises(ValueError, match=r"output: expected that of all steps .* \[4, 1\], got \[4, 2\]"):
        getattr(rmc.losses, loss)(output, rollout.lanes(slice(0, 1)), discount=0.99)
    with pytest.raises(ValueError, match=r"value: expected one of every time step, \[4, 2\], got \[3, 2\]"):
        rmc.losses.lambda_targets(rollout.value, rollout.steps, discount=0.99)
    with pytest.raises(ValueError, match="output: expected AgentOutput, got Rollout"):
        getattr(rmc.losses, loss)(rollout, output, discount=0.99)


def test_evaluation_takes_one_thread_and_gives_the_others_back() -> None:
    torch.set_num_threads(2)
    try:
        threads: list[int] = []
        rmc.evaluate(rmc.ActorCritic(SPEC, "none"), lambda: threads.append(torch.get_num_threads()) or Walk(), 2)
        assert set(threads[1:]) == {1}  # the first environment is only looked at
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)


def test_what_cannot_be_resumed_is_one_line() -> None:
    rmc.train(SETTINGS | {"total_frames": 21}, env=Walk, run_dir="run", console=QUIET)
    del gym.registry["own/Walk-v0"]
    wide = type(
        "Walk", (Walk,), {"observation_space": gym.spaces.Box(-1, 1, (2,)), "_observation": lambda _: np.ones(2)}
    )
    for call, expected in (
        (lambda: rmc.resume("run", console=QUIET), r"pass it again, as rmc.resume\(run, env=...\)"),
        (lambda: rmc.evaluate(rmc.load("run")), r"or rmc.evaluate\(saved, env\)"),
        (lambda: rmc.resume("run", {"core": "lstm"}, env=Walk, console=QUIET), "cannot change core"),
        (lambda: rmc.resume("run", {"cor": 1}, env=Walk, console=QUIET), "settings: there is no setting 'cor'"),
        (lambda: rmc.resume("run", env=ManyWalks, console=QUIET), "cannot change env: expected 'own/Walk-v0', got"),
        (
            lambda: rmc.resume("run", env=wide, console=QUIET),
            "the agent does not fit environment 'own/Walk-v0': expected",
        ),
        (lambda: rmc.resume("run", env=Walk, run_dir="other", console=QUIET), "run_dir: expected None"),
        (lambda: rmc.resume("run", env=Walk, run_dir="", console=QUIET), "run_dir: expected a folder's name"),
        (lambda: rmc.resume("run", [1], env=Walk, console=QUIET), r"settings: expected a dict, .* got \[1\]"),
        (lambda: rmc.resume("run", lambda _: None, env=Walk, console=QUIET), "settings: expected a function that ret"),
        (
            lambda: rmc.train(SETTINGS, run_dir="run/config.yaml"),
            "run/config.yaml is a file: expected a folder's name",
        ),
        (lambda: rmc.train({"config": 3}), "config: config: expected a preset's or file's name, got 3"),
        (lambda: rmc.resume("nowhere", env=Walk, console=QUIET), "cannot resume nowhere"),
    ):
        with pytest.raises(ValueError, match=expected):
            call()


def test_a_copy_of_a_run_continues_from_a_checkpoint() -> None:
    run = rmc.train(SETTINGS | {"total_frames": 42}, env=Walk, run_dir="run", console=QUIET)
    (first, _) = sorted((run.path / "checkpoints").iterdir())
    updates: list[int] = []
    copy = rmc.resume(first, env=Walk, run_dir="copy", callback=lambda p: updates.append(p.updates), console=QUIET)
    assert (copy.path, updates) == (Path("copy"), [2])
    for one, other in zip(run.agent.parameters(), copy.agent.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("value", "got"),
    [
        ({1, 2}, "set"),
        (np.ones(1, np.complex128), "an array of complex128"),
        (np.complex128(1), "complex"),
        (np.longdouble(1), "longdouble"),
    ],
)
def test_a_state_that_no_checkpoint_can_hold_is_reported(value: Any, got: str) -> None:
    class Odd(Walk):
        def get_state(self) -> dict[str, Any]:
            return {"value": value}

    lanes = rmc.make_env(Odd, 2)
    lanes.reset(seed=0)
    with pytest.raises(ValueError, match=rf"'Odd' failed in get_state\(\): TypeError: expected dicts .*, got {got}"):
        lanes.get_state()  # type: ignore[attr-defined]


def test_impala_refuses_extra_state_of_modules() -> None:
    class Counting(nn.Linear):
        def get_extra_state(self) -> dict[str, int]:
            return {"count": 1}

    with pytest.raises(ValueError, match="algo impala: expected only tensors in the agent's state, got _extra_state"):
        pack_weights(Counting(1, 1))


def test_lanes_are_savable_only_if_all_their_layers_are() -> None:
    class Counting(gym.Wrapper):
        """It may keep something."""

    assert hasattr(rmc.make_env(lambda: TimeLimit(Walk(), 5), 2), "get_state")
    assert not hasattr(rmc.make_env(lambda: Counting(Walk()), 2), "get_state")
    lanes, other = rmc.make_env(Walk, 2), rmc.make_env(Walk, 3)
    lanes.reset(seed=0)
    other.reset(seed=0)
    with pytest.raises(ValueError, match="expected 3 lanes, got 2"):
        other.set_state(lanes.get_state())  # type: ignore[attr-defined]


def test_episodes_without_a_reported_success_are_failures_after_a_resume_too() -> None:
    class Winning(Walk):
        def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
            *results, ended, _, _ = super().step(action)
            return *results, True, False, {"is_success": True} if ended else {}

    lanes, resumed = (Lanes(rmc.make_env(Winning, 2, env_kwargs={"length": 1}), 0, torch.device("cpu")) for _ in "ab")
    while not any(episode.success for episode in lanes.take_episodes()):
        lanes.step(torch.ones(2, dtype=torch.int64))
    resumed.set_state(lanes.get_state())  # type: ignore[arg-type]
    resumed.step(torch.zeros(2, dtype=torch.int64))
    resumed.step(torch.zeros(2, dtype=torch.int64))
    successes = [episode.success for episode in resumed.take_episodes()]
    assert successes
    assert None not in successes


def test_several_learners_share_the_saved_lanes() -> None:
    collector = Collector(rmc.ActorCritic(SPEC, rmc.GRU), rmc.make_env(Walk, 5), 3)
    collector.collect()
    whole = collector.get_state()
    parts = [shares.part(whole, share) for share in shares.split_lanes(5, 2)]
    places = [[layers[0]["place"] for layers in part["lanes"]["env"]["lanes"]["each lane"]] for part in parts]
    assert [len(part) for part in places] == [2, 3]
    assert_same(shares.merged(parts), whole)
    collector.set_state(shares.merged(parts))


def test_a_custom_loop() -> None:
    env = rmc.make_env(Walk, 4, env_kwargs={"length": 2})
    agent = rmc.ActorCritic(rmc.SpaceSpec.of(env), core=Slots, encoder=Flat)
    collector = rmc.Collector(agent, env, 5)
    for loss in (rmc.losses.a2c, rmc.losses.ppo, rmc.losses.vtrace):
        rollout = collector.collect()
        output, _ = agent.unroll(rollout.steps, rollout.initial_state)
        value, _ = loss(output, rollout, discount=0.9)  # type: ignore[operator]
        value.backward()
        assert np.isfinite(value.item())


def test_rollouts_can_be_kept() -> None:
    collector = rmc.Collector(rmc.ActorCritic(SPEC, "gru"), rmc.make_env(Walk, 2), 3)
    first = collector.collect()[:4]  # the tensors
    copies = map_leaves(torch.clone, first)
    collector.collect()
    map_leaves(lambda leaf, copy: torch.testing.assert_close(leaf, copy, rtol=0, atol=0), first, copies)


def test_a_core_may_have_infinite_numbers_in_its_state_but_not_nan() -> None:
    collector = rmc.Collector(rmc.ActorCritic(SPEC, "gru"), rmc.make_env(Walk, 2), 3)
    expected, state = collector.expected_state(), collector.get_state()
    leaf = torch.as_tensor(state["core"][0])
    check_like(state | {"core": [torch.full_like(leaf, -torch.inf)]}, expected, "collector")
    with pytest.raises(ValueError, match="collector/core/0: expected finite numbers, got NaN"):
        check_like(state | {"core": [torch.full_like(leaf, torch.nan)]}, expected, "collector")


def test_a_core_whose_state_begins_as_nan_may_keep_nan() -> None:
    empty = torch.full((2,), torch.nan)
    check_like([empty], unbounded([empty]), "core")
    with pytest.raises(ValueError, match="core/0: expected finite numbers, got NaN"):
        check_like([empty], unbounded([torch.zeros(2)]), "core")


def test_a_buffer_may_be_infinite_but_not_a_parameter() -> None:
    module = nn.BatchNorm1d(1)
    weights, low = module.state_dict(), torch.full((1,), -torch.inf)
    check_like(weights | {"running_mean": low}, weights_like(module), "agent")
    with pytest.raises(ValueError, match="agent/weight: expected finite numbers"):
        check_like(weights | {"weight": low}, weights_like(module), "agent")


def test_metadata_of_other_types_is_ignored() -> None:
    env = rmc.make_env(partial(Walk, length=2), 1)
    env.metadata = env.metadata | {"vocabulary": ["a", "b"]}
    assert SpaceSpec.of(env).vocabulary == ""


@pytest.mark.parametrize(("chance", "expected"), [("1/3", None), (np.float32(0.5), 0.5), (float("nan"), None)])
def test_chance_is_a_number_or_ignored(chance: Any, expected: float | None) -> None:
    class Guessing(Walk):
        metadata: ClassVar[dict[str, Any]] = Walk.metadata | {"chance": chance}

    settings = PlaySettings(0, torch.device("cpu"))
    assert evaluate_beside_random(rmc.ActorCritic(SPEC, "none"), Guessing, 1, settings)["chance"] == expected


class Constant(nn.Module):
    """A policy that prefers action 0, whatever the mask says."""

    def __init__(self, spec: rmc.SpaceSpec, outputs: int | None = None) -> None:
        super().__init__()
        self.spec = spec
        self.logits = nn.Parameter(torch.eye(outputs or spec.num_outputs)[0] * 9)

    def initial_state(self, batch_size: int) -> tuple[()]:
        return ()

    def step(self, steps: rmc.TimeStep, state: tuple[()]) -> Any:
        lanes = len(steps.is_first)
        return rmc.AgentOutput(self.logits.expand(lanes, -1), torch.zeros(lanes)), state


def test_forbidden_actions_are_not_taken_by_a_policy_that_ignores_masks(tmp_path: Path) -> None:
    """The environment fails at a forbidden action."""
    env = "helpers.zoo:Zoo-Mask-v0"
    policy = Constant(rmc.SpaceSpec.of(rmc.make_env(env)))
    rollout = rmc.Collector(policy, rmc.make_env(env, 3), 9).collect()
    assert rollout.steps.action_mask is not None
    chosen = rollout.steps.prev_action[1:].unsqueeze(-1)
    is_playing = ~rollout.steps.is_first[1:]
    assert rollout.steps.action_mask[:-1].gather(-1, chosen).squeeze(-1)[is_playing].all()
    assert rmc.evaluate(policy, env, 3).episodes == 3
    rmc.record_video(policy, env, tmp_path / "a.gif", episodes=1)
    rmc.record_replay({"a": policy}, env, tmp_path / "a.html")
    lanes = rmc.make_env(env, 3)
    player, (obs, infos) = rmc.Player.of(policy, lanes), lanes.reset(seed=0)
    lanes.step(player.act(obs, action_mask=infos.get("action_mask")))


class Unbatched(Constant):
    def step(self, steps: rmc.TimeStep, state: tuple[()]) -> Any:
        return rmc.AgentOutput(self.logits, torch.zeros(())), state


class Bare(Constant):
    def step(self, steps: rmc.TimeStep, state: tuple[()]) -> Any:
        return super().step(steps, state)[0]


@pytest.mark.parametrize(
    ("policy", "got"),
    [
        (Constant(SPEC, 7), r"an AgentOutput of shapes {'policy_logits': \(2, 7\), 'value': \(2,\)}"),
        (Unbatched(SPEC), "an AgentOutput of shapes"),
        (Bare(SPEC), "AgentOutput$"),
    ],
)
def test_outputs_of_a_policy_of_ones_own_are_checked(policy: Constant, got: str) -> None:
    expected = rf"step: expected \(AgentOutput with policy_logits of shape \(2, .* next state\), got {got}"
    for act in (rmc.Collector(policy, rmc.make_env(Walk, 2), 3).collect, lambda: rmc.evaluate(policy, Walk, 2)):
        with pytest.raises(ValueError, match=expected):
            act()


def test_collectors_with_different_seeds_share_no_lanes() -> None:
    agent, lanes = rmc.ActorCritic(SPEC, "none"), 4
    seeds = []
    for seed in (0, 1):
        env = rmc.make_env(Walk, lanes)
        rmc.Collector(agent, env, 3, seed=seed)
        seeds += [str(one.np_random.bit_generator.state) for one in env.unwrapped.envs]  # type: ignore[attr-defined]
    assert len(set(seeds)) == 2 * lanes


def test_a_collectors_state_can_be_restored_twice() -> None:
    collector = rmc.Collector(rmc.ActorCritic(SPEC, "gru"), rmc.make_env(Walk, 2), 30)
    collector.collect()
    state, episodes = collector.get_state(), []
    for _ in range(2):
        collector.set_state(state)
        collector.lanes.take_episodes()
        collector.collect()
        episodes.append(collector.lanes.take_episodes())
    assert episodes[0] == episodes[1] != []


def test_a_collectors_state_is_not_changed_by_an_environment_that_reuses_its_arrays() -> None:
    class Clocks(VectorEnv):
        metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
        num_envs, single_observation_space, single_action_space = 2, Box(0, 99, (1,)), Discrete(2)
        time = np.zeros((2, 1), np.float32)

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            return self.time, {}

        def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
            self.time += 1
            return self.time, np.zeros(2), np.zeros(2, bool), np.zeros(2, bool), {}

        def get_state(self) -> dict[str, Any]:
            return {"time": self.time.copy()}

        def set_state(self, state: dict[str, Any]) -> None:
            self.time = state["time"].copy()

    collector = rmc.Collector(rmc.ActorCritic(SpaceSpec.of(Clocks()), "none"), Clocks(), 3)
    collector.collect()
    state = collector.get_state()
    for _ in range(2):
        assert collector.collect().steps.obs[:, 0, 0].tolist() == [3, 4, 5, 6]
        collector.set_state(state)


def test_lanes_of_an_older_checkpoint_are_taken() -> None:
    collector = rmc.Collector(rmc.ActorCritic(SPEC, "gru"), rmc.make_env(Walk, 2), 3)
    state = collector.get_state()
    for newer in reversed(NEWER):
        del state["lanes"][newer]
        check_like(state, collector.expected_state(), "collector")
        collector.set_state(state)


def test_a_class_is_an_environment_by_its_name_in_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "walks.py").write_text("from helpers import own_parts\n\nclass Walk(own_parts.Walk):\n    pass")
    monkeypatch.syspath_prepend(tmp_path)
    for name in (f"{PARTS}:Walk", "walks:Walk"):
        (lane,) = rmc.make_env(name, 1).unwrapped.envs  # type: ignore[attr-defined]
        assert type(lane.unwrapped).__module__ == name.partition(":")[0]
    assert rmc.make_env(f"{PARTS}:ManyWalks-stack2", 3).single_observation_space.shape == (2,)
    assert rmc.evaluate(rmc.ActorCritic(SPEC, "none"), "walks:Walk", episodes=2).episodes == 2


def test_train_imports_the_module_of_an_environment_that_it_is_given(tmp_path: Path) -> None:
    (tmp_path / "named_env.py").write_text("from helpers import own_parts\n\nclass Named(own_parts.Walk):\n    pass")
    run = rmc.train(SETTINGS | {"total_frames": 21}, env="named_env:Named", console=QUIET)
    assert rmc.load(run.path).config.env.env == "named_env:Named"


@pytest.mark.slow
def test_an_environment_given_again_keeps_its_arguments_unless_others_are_given(run: Path) -> None:
    trained = rmc.train(SETTINGS | {"total_frames": 21, "env_kwargs": {"length": 2}}, env=Walk, console=QUIET)
    envs = (None, Walk, partial(Walk, length=3), partial(Walk, 3))
    first, again, other, same = (rmc.evaluate(rmc.load(trained.path), env).mean_length for env in envs)
    assert again == first != other == same

    def length(*flags: str) -> float:
        evaluate_cli.main([str(run), "--episodes", "9", "--import", PARTS, "--json", "found.json", *flags])
        return json.loads(Path("found.json").read_text())["mean_length"]

    named = ["--env", f"{PARTS}:Walk"]
    assert length() == length(*named) != length(*named, "--env-kwargs", "length=3")
