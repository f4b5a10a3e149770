"""Supervised learning: alignment of targets and steps, the agent's answers, exact resume, accuracy, rejections."""

import copy
import json
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from gymnasium.vector import SyncVectorEnv

import rmc_agents as rmc
from helpers.runs import assert_same, find_and_load, refused, train
from rmc_agents.config import Config
from rmc_agents.envs.making import make_env
from rmc_agents.envs.processes import EnvError
from rmc_agents.envs.sequences.names import TEXT
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.stream import Lanes
from rmc_agents.train import cli as train_cli
from rmc_agents.train.run import train as train_in
from rmc_agents.train.supervised import Supervised
from rmc_agents.types import at

CPU = torch.device("cpu")
TASK = "nth-farthest-vectors2-size3"  # a sequence and the step to the next one take 3 steps


def small(env: str = TASK, core: str = "lstm", **settings: object) -> Supervised:
    """A learner with 6 lanes and rollouts of 7 steps that begin anywhere in a sequence."""
    sizes = {"hidden_size": 8, "mem_slots": 3, "head_size": 4, "encoder_sizes": [8], "num_envs": 6, "unroll_length": 7}
    return Supervised(
        Config().updated({"algo": "supervised", "env": env, "core": core} | sizes | settings, "test"), CPU
    )


def test_targets_are_aligned_with_their_steps() -> None:
    learner = small()
    for first in (0, 7, 14):
        rollout = learner.collector.collect()
        assert rollout.targets is not None
        asked = rollout.targets >= 0
        assert torch.equal(asked, (torch.arange(first, first + 7) % 3 == 1).unsqueeze(1).expand(7, 6))
        rewarded = rollout.steps.prev_reward[1:] == 1.0
        assert torch.equal(rewarded, asked & (rollout.targets == rollout.steps.prev_action[1:]))
        assert torch.equal(rollout.steps.prev_action[1:], rollout.policy_logits.argmax(dim=-1))


def test_the_step_is_along_the_gradient_of_the_asked_steps_from_the_carried_state() -> None:
    learner = small(core="rmc", max_grad_norm=1e9)
    learner.update()
    rollout = learner.collector.collect()
    assert rollout.targets is not None
    state, logits = rollout.initial_state, []
    assert not any(leaf.requires_grad for leaf in state)
    assert any(leaf.any() for leaf in state)
    for t in range(7):
        output, state = learner.agent.step(at(rollout.steps, t), state)
        logits.append(output.policy_logits)
    stacked, asked = torch.stack(logits), rollout.targets >= 0
    loss = torch.nn.functional.cross_entropy(stacked[asked], rollout.targets[asked])
    parameters = [p for name, p in learner.agent.named_parameters() if not name.startswith("value.")]
    expected = torch.autograd.grad(loss, parameters)
    metrics = learner.learn(rollout)
    assert metrics["losses/cross_entropy"].item() == pytest.approx(loss.item(), rel=1e-4)
    for parameter, gradient in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-6)


def test_no_step_is_taken_where_nothing_is_asked() -> None:
    """Not even along the momentum of earlier steps: only the last of three rollouts has targets here."""
    learner = small("nth-farthest-vectors8-size3", unroll_length=3)
    accuracies = [learner.update()["charts/accuracy"] for _ in range(3)]
    assert [accuracy.isnan().item() for accuracy in accuracies] == [True, True, False]
    before = [parameter.clone() for parameter in learner.agent.parameters()]
    assert learner.update()["charts/accuracy"].isnan()
    assert all(torch.equal(a, b) for a, b in zip(before, learner.agent.parameters(), strict=True))


@pytest.mark.parametrize("env", [TASK, "nth-farthest-vectors3-every", "program-copy-length2"])
def test_a_run_continues_from_its_state_as_if_never_interrupted(env: str) -> None:
    """The second rollout begins in the middle of a sequence of TASK, with a question."""
    learner, other = small(env), small(env)
    learner.update()
    other.set_state(copy.deepcopy(learner.get_state()))
    for _ in range(3):
        assert_same(learner.update(), other.update())
    assert_same(learner.get_state(), other.get_state())


def test_evaluation_reports_the_accuracy_of_the_most_likely_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each sequence asks once here, with reward 1, so return, success rate and accuracy are equal."""
    run, found = tmp_path / "run", tmp_path / "found.json"
    assert train("--algo", "supervised", "--env", TASK, "--total-frames", "40", "--run-dir", str(run)) == 0
    assert evaluate_cli.main([str(run), "--episodes", "30", "--json", str(found)]) == 0
    result = json.loads(found.read_text())
    assert result["deterministic"]
    assert result["accuracy"] == result["success_rate"] == result["mean_return"]
    assert result["accuracy_ci95"] == result["ci95"]
    assert result["chance"] == 0.5
    output = capsys.readouterr().out
    assert "chance 50.00%" in output
    assert "loss" in output
    assert "accuracy" in output


def test_what_has_nothing_to_learn_from_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "short.txt").write_text("short")
    text, needed = f"text:{tmp_path}/short.txt", "expected at least 5120 tokens for 256 lanes of 20 steps, got 5"
    for algo, env, message in (
        ("supervised", "recall", "infos['target']"),
        ("supervised", text, needed),
        ("ppo", text, needed),
    ):
        flags = ["--algo", algo, "--env", env, "--run-dir", str(tmp_path / "run")]
        assert message in refused(capsys, train_cli, *flags)
        assert not (tmp_path / "run").exists()


class Asking(gym.Env):
    """Reports the right action only at the first step."""

    observation_space = Box(0.0, 1.0, (1,), np.float32)

    def __init__(self, target: object, start: int = 0) -> None:
        self.target, self.action_space = target, Discrete(3, start=start)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(1, np.float32), {"target": self.target}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(1, np.float32), 0.0, False, False, {}


def test_what_an_environment_does_not_report_is_not_asked() -> None:
    lanes = Lanes(SyncVectorEnv([lambda: Asking(2)] * 2), 0, CPU)
    assert lanes.targets is not None
    assert lanes.targets.tolist() == [2, 2]
    lanes.step(torch.zeros(2, dtype=torch.int64))
    assert lanes.targets.tolist() == [-1, -1]


@pytest.mark.parametrize("target", [True, np.bool_(True)])
def test_lanes_may_give_targets_of_different_types(target: object) -> None:
    class Labelled(Asking):
        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            return np.zeros(1, np.float32), {"target": target if seed == 0 else -1}

    assert Lanes(make_env(lambda: Labelled(None), 2), 0, CPU).read_targets().tolist() == [1, -1]


class Asked(Asking):
    """As `Asking`, and at every step of its two, the last one included."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        return np.zeros(1, np.float32), 0.0, False, self.steps == 2, {"target": self.target}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        self.steps = 0
        return super().reset()


def test_nothing_is_asked_at_an_episodes_last_observation(caplog: pytest.LogCaptureFixture) -> None:
    lanes = Lanes(SyncVectorEnv([lambda: Asked(2)]), 0, CPU, needs_targets=True)
    asked = []
    for _ in range(4):
        asked.append(lanes.targets.item() if lanes.targets is not None else None)
        lanes.step(torch.zeros(1, dtype=torch.int64))
    assert asked == [2, 2, -1, 2]
    assert [record.getMessage().split(":")[0] for record in caplog.records] == [
        "infos['target'] of 'Asked' is ignored at an episode's last observation, where no action follows"
    ]


def read_targets(env: gym.Env) -> None:
    """Where they are no actions, the name means something else, unless they are what is learned."""
    lanes = Lanes(SyncVectorEnv([lambda: env] * 2), 0, CPU)
    assert lanes.targets is None
    lanes.read_targets()


def test_a_target_that_means_something_else_matters_to_supervised_learning_alone(tmp_path: Path) -> None:
    settings = {"num_envs": 2, "core": "none", "encoder_sizes": [8], "unroll_length": 2, "total_frames": 4}
    settings |= {"eval_episodes": 0, "video": False}  # its episodes never end
    assert train_in(settings, env=lambda: Asking("left"), run_dir=tmp_path / "run").summary["frames"] == 4
    with pytest.raises(ValueError, match=r"infos\['target'\]: expected an action per lane, got"):
        train_in(settings | {"algo": "supervised"}, env=lambda: Asking("left"), run_dir=tmp_path / "other")


@pytest.mark.parametrize("target", [3, -2])
def test_targets_that_are_no_actions_are_refused(target: object) -> None:
    with pytest.raises(ValueError, match=r"infos\['target'\]: expected actions from 0 to 2, or -1"):
        read_targets(Asking(target))


@pytest.mark.parametrize("target", [np.array([0, 1]), "left", -1.0])
def test_targets_are_one_action_per_lane(target: object) -> None:
    with pytest.raises(ValueError, match=r"infos\['target'\]: expected an action per lane, got"):
        read_targets(Asking(target))


class AskedWrongly(Asking):
    """Reports a target in its first step that is not an action."""

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return *super().step(action)[:4], {"target": 3}


def test_a_target_that_is_no_action_is_not_asked_where_targets_are_not_needed() -> None:
    lanes = Lanes(SyncVectorEnv([lambda: AskedWrongly(2)]), 0, CPU)
    for _ in range(2):
        lanes.step(torch.zeros(1, dtype=torch.int64))
        assert lanes.targets is not None
        assert lanes.targets.tolist() == [-1]


def test_a_target_that_the_mask_forbids_is_not_asked_where_targets_are_not_needed() -> None:
    class Masked(Asking):
        def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
            return super().reset()[0], {"target": 2, "action_mask": np.array([1, 1, 0], np.int8)}

    lanes = Lanes(SyncVectorEnv([lambda: Masked(2)]), 0, CPU)
    assert lanes.targets is not None
    assert lanes.targets.tolist() == [-1]


def test_a_wrong_target_in_a_step_is_the_environments_and_the_training_is_saved(tmp_path: Path) -> None:
    settings = {"algo": "supervised", "num_envs": 2, "core": "none", "encoder_sizes": [8]}
    with pytest.raises(EnvError, match=r"'own/lambda-v0' failed in step\(\): ValueError: infos\['target"):
        train_in(settings, env=lambda: AskedWrongly(1), run_dir=tmp_path / "run")
    assert find_and_load(tmp_path / "run")[1]["frames"] == 0


def test_an_evaluation_of_a_supervised_agent_refuses_targets_that_are_no_actions(tmp_path: Path) -> None:
    settings = {"algo": "supervised", "num_envs": 2, "core": "none", "encoder_sizes": [8]}
    run = {"total_frames": 40, "eval_episodes": 0, "video": False}
    train_in(settings | run, env=lambda: Asking(1), run_dir=tmp_path / "run")
    with pytest.raises(EnvError, match=r"infos\['target'\]: expected actions from 0 to 2, or -1"):
        rmc.evaluate(rmc.load(tmp_path / "run"), lambda: AskedWrongly(1), 2, max_steps=3)


@pytest.mark.parametrize(("start", "target", "expected"), [(1, 3, 2), (1, 1, 0), (1, -1, -1)])
def test_targets_count_as_the_environment_counts_its_actions(start: int, target: int, expected: int) -> None:
    lanes = Lanes(SyncVectorEnv([lambda: Asking(target, start)] * 2), 0, CPU)
    assert lanes.targets is not None
    assert lanes.targets.tolist() == [expected] * 2


@pytest.mark.parametrize(("start", "message"), [(1, "actions from 1 to 3, or -1"), (-1, "count from 0 or more")])
def test_targets_below_the_first_action_are_refused(start: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_targets(Asking(0, start))


class AskedLate(Asking):
    """Reports no mask at the reset, but at the steps."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.zeros(1, np.float32), 0.0, False, False, {"action_mask": np.ones(3, bool)}


def test_a_mask_that_comes_late_is_an_error() -> None:
    lanes = Lanes(SyncVectorEnv([lambda: AskedLate(1)] * 2), 0, CPU)
    with pytest.raises(EnvError, match=r"'AskedLate' reported its first infos\['action_mask'\] in step\(\)"):
        lanes.step(torch.zeros(2, dtype=torch.int64))


class AskedOnce(Asking):
    """Reports a mask only at the reset."""

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        return np.zeros(1, np.float32), {"action_mask": np.ones(3, bool)}


def test_a_mask_that_is_missing_in_a_step_is_an_error() -> None:
    lanes = Lanes(SyncVectorEnv([lambda: AskedOnce(1)] * 2), 0, CPU)
    with pytest.raises(EnvError, match=r"'AskedOnce' failed in step\(\): .* is missing in lane 0, at step 1 of its"):
        lanes.step(torch.zeros(2, dtype=torch.int64))


def test_targets_of_other_actions_are_refused(tmp_path: Path) -> None:
    env = Asking(1)
    env.action_space = MultiDiscrete([2, 2])
    with pytest.raises(ValueError, match=r"--algo supervised: expected Discrete actions for targets, in .* got obs"):
        train_in({"algo": "supervised", "num_envs": 2}, env=env, run_dir=tmp_path / "run")


def test_a_text_too_short_to_hold_a_part_out_is_trained_on(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("twelve words are enough for ten steps but not for an evaluation")
    flags = f"--env text-words:{text} --algo supervised --core none --encoder-sizes 4 --num-envs 2 --unroll-length 5"
    flags += f" --eval-episodes 0 --no-video --total-frames 10 --run-dir {tmp_path / 'run'}"
    assert train_cli.main(flags.split()) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "env", ["text-words:{}", *(f"{name} --env-kwargs unit=words path={{}}" for name in (TEXT, "Text-v0"))]
)
def test_words_keep_their_meaning(env: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, other, run = tmp_path / "one.txt", tmp_path / "two.txt", tmp_path / "run"
    text.write_text("to be or not to be " * 40)
    other.write_text("be not to or be not " * 40)  # the same four words, in another order of frequency
    flags = f"--env {env.format(text)} --algo supervised --core none --encoder-sizes 4 --num-envs 2 --unroll-length 5"
    assert train_cli.main([*flags.split(), "--eval-episodes", "0", "--total-frames", "10", "--run-dir", str(run)]) == 0
    evaluation = [str(run), "--env", f"text-words:{other}", "--episodes", "2", "--max-steps", "9"]
    assert evaluate_cli.main(evaluation) == 2
    assert "give --env-kwargs vocabulary=RUN/vocabulary.json" in capsys.readouterr().err
    assert evaluate_cli.main([*evaluation, "--env-kwargs", f"vocabulary={run / 'vocabulary.json'}"]) == 0
    text.write_text(other.read_text())
    capsys.readouterr()
    line = refused(capsys, train_cli, "--resume", run, "--total-frames", "20")
    assert "its training part is not the one" in line
    (run / "text.sha256").unlink()  # as in older runs
    line = refused(capsys, train_cli, "--resume", run, "--total-frames", "20")
    assert "does not fit environment" in line


@pytest.mark.slow
def test_a_text_is_modelled_measured_in_bits_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, run, found = tmp_path / "abc.txt", tmp_path / "run", tmp_path / "found.json"
    text.write_text("abc" * 2_000)
    settings = ["--core", "none", "--unroll-length", "10", "--total-frames", "12000"]
    settings += ["--num-envs", "16", "--learning-rate", "0.03"]
    assert train("--algo", "supervised", "--env", f"text:{text}", "--run-dir", str(run), *settings) == 0
    assert evaluate_cli.main([str(run), "--episodes", "2", "--max-steps", "50", "--json", str(found)]) == 0
    result = json.loads(found.read_text())
    assert 0.0 <= result["bits"] < 0.1
    assert "bits per answer" in capsys.readouterr().out
    assert evaluate_cli.main([str(run), "--sample", "9", "--prompt", "ca", "--temperature", "1e-320"]) == 0
    assert capsys.readouterr().out == "cabcabcabca\n"
    for wrong, message in (
        ({"seed": -1}, "seed: expected an int of"),
        ({"temperature": "1"}, "temperature: expected a num"),
        ({"prompt": None}, "prompt: expected a text, got None"),
        ({"prompt": "\ud800"}, "prompt: .* surrogates not allowed"),
    ):
        with pytest.raises(ValueError, match=message):
            rmc.sample_text(rmc.load(run), 3, **wrong)
    line = refused(capsys, evaluate_cli, "minipacman-rmc", "--sample", "9")
    assert "expected an agent of a text" in line
    for changed in ("abd" * 2_000, "abc"):  # as long, and too short for the saved lanes
        text.write_text(changed)
        line = refused(capsys, train_cli, "--resume", str(run), "--total-frames", "13000")
        assert f"its training part is not the one that the run in {run} has read" in line


def test_an_evaluation_that_cannot_be_made_is_refused_before_the_training(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(bytes(1000))
    env = {"env": f"text:{tmp_path / 'text'}", "env_kwargs": {"held_out": 0.001}}
    with pytest.raises(
        ValueError, match=r"text .*: expected a heldout part with a document of at least 2 tokens, got 1 in 1"
    ) as caught:
        train_in({"algo": "supervised", "num_envs": 2, "unroll_length": 5} | env, run_dir=tmp_path / "run")
    assert not isinstance(caught.value, EnvError)
    assert not (tmp_path / "run").exists()
