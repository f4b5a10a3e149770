"""IMPALA's learner: without lag it equals A2C, with lag V-trace corrects it, and its runs are like any other."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from helpers import counting
from helpers.agents import LANES, LENGTH, make_agent, rollout_with_every_ending, small_trainer
from helpers.runs import events_of, find_and_load, refused
from rmc_agents import losses
from rmc_agents.config import Config, TrainConfig
from rmc_agents.distributions import Categorical
from rmc_agents.envs.processes import WorkerError
from rmc_agents.evaluate import cli as evaluate_cli
from rmc_agents.train import cli
from rmc_agents.train.impala import pool, trainer
from rmc_agents.train.impala.trainer import Impala, check_settings, concatenated
from rmc_agents.types import AgentOutput, at

CPU = torch.device("cpu")
ACTORS = {"algo": "impala", "actors": 2, "lanes_per_actor": 3, "batch_rollouts": 2}


def arguments(config: TrainConfig) -> dict[str, Any]:
    """The arguments of the losses from a run's settings."""
    names = ("discount", "trace_lambda", "reward_scale", "normalize_advantages", "value_cost", "entropy_cost")
    return {name: getattr(config, name) for name in names}


def clips(config: TrainConfig) -> dict[str, float]:
    return {"clip_rho": config.clip_rho, "clip_pg_rho": config.clip_pg_rho}


@pytest.mark.parametrize("core", ["lstm", "none"])
def test_without_lag_the_update_is_that_of_a2c(core: str) -> None:
    """Weights after five rollouts, with episodes that end in them."""
    a2c = small_trainer(core=core)
    impala = Impala(a2c.config.updated(ACTORS, "test"), CPU)
    for _ in range(5):
        rollout = a2c.collector.collect()
        found, expected = impala.learn(rollout), a2c.learn(rollout)
        impala.frames = a2c.frames  # whose count decides the learning rate
        for name in ("losses/policy_loss", "losses/value_loss", "losses/entropy", "losses/grad_norm"):
            torch.testing.assert_close(found[name], expected[name].detach(), rtol=1e-3, atol=1e-5)
        assert found["losses/rho_mean"] == pytest.approx(1.0, abs=1e-4)
        assert found["losses/approx_kl"] == pytest.approx(0.0, abs=1e-6)
    for one, other in zip(a2c.agent.parameters(), impala.agent.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def said_again() -> tuple[AgentOutput, torch.Tensor]:
    """An agent's current outputs for `rollout_with_every_ending`, with gradient: logits and values, and its leaves."""
    torch.manual_seed(1)
    leaf = torch.randn(LENGTH + 1, LANES, make_agent("lstm").policy.out_features + 1, requires_grad=True)
    return AgentOutput(leaf[..., :-1], leaf[..., -1]), leaf


@pytest.mark.parametrize("normalize", [False, True])
def test_the_loss_is_that_of_vtrace_targets_lane_by_lane(normalize: bool) -> None:
    """Each episode's part separately, by the pure function, which has its own oracle (test_losses)."""
    config = Config().updated({"normalize_advantages": normalize, "trace_lambda": 0.8, "clip_rho": 1.2}, "test").train
    rollout = rollout_with_every_ending()
    output, _ = said_again()
    steps, action = rollout.steps, rollout.steps.prev_action[1:]
    log_prob = Categorical(output.policy_logits[:-1]).log_prob(action).detach()
    log_rho = log_prob - Categorical(rollout.policy_logits).log_prob(action)
    value, reward = output.value.detach(), config.reward_scale * steps.prev_reward
    targets, advantages, weights, logs, values, entropies = [], [], [], [], [], []
    for lane, pieces in enumerate([[(0, 9)], [(0, 4), (5, 9)], [(0, 4), (5, 9)]]):
        for first, last in pieces:
            here, there = slice(first, last), slice(first + 1, last + 1)
            discount = torch.full((last - first,), config.discount)
            discount[-1] *= ~steps.terminated[last, lane]
            part = losses.vtrace_targets(
                *(x[:, None] for x in (value[here, lane], value[there, lane], reward[there, lane], discount)),
                log_rho[here, lane, None],
                torch.tensor([0.8] * (last - first - 1) + [0.0 if last < 9 else 0.8])[:, None],
                clip_rho=1.2,
            )
            targets.append(part.targets[:, 0])
            advantages.append(part.advantages[:, 0])
            weights.append(part.weights[:, 0])
            logs.append(log_prob[here, lane])
            values.append(value[here, lane])
            entropies.append(Categorical(output.policy_logits.detach()[here, lane]).entropy())
    target, advantage, log, expected_value, entropy = map(torch.cat, (targets, advantages, logs, values, entropies))
    weight = torch.cat(weights)
    if normalize:
        advantage = (advantage - advantage.mean()) / advantage.std(correction=0)
    expected = (
        -(log * weight * advantage).mean()
        + config.value_cost * 0.5 * (target - expected_value).square().mean()
        - config.entropy_cost * entropy.mean()
    )
    loss, _ = losses.vtrace(output, rollout, **arguments(config), **clips(config))
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-4, atol=1e-5)


def test_filler_steps_enter_neither_loss_nor_gradient() -> None:
    """Their actions were ignored, whatever logits they were sampled from."""
    rollout, config = rollout_with_every_ending(), Config().train
    valid = ~rollout.steps.is_first[1:]
    output, leaf = said_again()
    loss, _ = losses.vtrace(output, rollout, **arguments(config), **clips(config))
    loss.backward()
    assert not leaf.grad[:-1][~valid].any()
    assert leaf.grad[:-1][valid].any()
    assert not leaf.grad[-1].any()
    noise = torch.where(valid.unsqueeze(-1), 0.0, 9.0 * torch.randn_like(rollout.policy_logits))
    other, _ = losses.vtrace(
        output, rollout._replace(policy_logits=rollout.policy_logits + noise), **arguments(config), **clips(config)
    )
    assert torch.equal(other, loss)


def test_actions_that_the_policy_no_longer_takes_have_no_gradient() -> None:
    """Normalised advantages do not matter there, because their importance weight is 0."""
    rollout = rollout_with_every_ending()
    config = Config().updated({"entropy_cost": 0.0, "normalize_advantages": True}, "test").train
    output, leaf = said_again()
    taken = torch.nn.functional.one_hot(rollout.steps.prev_action[1:], output.policy_logits.shape[-1])
    logits = output.policy_logits[:-1] - 100.0 * taken * (torch.arange(LANES) == 1).view(1, -1, 1)
    loss, _ = losses.vtrace(
        output._replace(policy_logits=torch.cat([logits, logits[-1:]])), rollout, **arguments(config), **clips(config)
    )
    loss.backward()
    assert leaf.grad[:, 0].abs().max() > 1e-3
    assert leaf.grad[:, 1].abs().max() < 1e-12


def test_without_vtrace_rollouts_count_as_on_policy() -> None:
    rollout, config = rollout_with_every_ending(), small_trainer().config.updated(ACTORS, "test")
    output, _ = said_again()
    corrected, taken = (
        Impala(config.updated({"vtrace": on}, "test"), CPU)._loss(output, rollout)[0] for on in (True, False)
    )
    expected, _ = losses.a2c(output, rollout, **arguments(config.train))
    torch.testing.assert_close(taken, expected)
    assert not torch.allclose(corrected, expected, rtol=1e-3)


def test_rollouts_side_by_side_are_one_of_all_lanes() -> None:
    trainer = small_trainer(core="lstm")
    trainer.update()
    rollout = trainer.collector.collect()

    def lanes(part: slice) -> object:
        state = at(rollout.initial_state, part)
        steps = at(rollout.steps, slice(None), part)
        return type(rollout)(steps, rollout.policy_logits[:, part], rollout.value[:, part], state)

    whole = concatenated([lanes(slice(0, 2)), lanes(slice(2, 6))], CPU)
    for one, other in zip(
        [*whole.steps[:6], *whole.initial_state, whole.policy_logits, whole.value],
        [*rollout.steps[:6], *rollout.initial_state, rollout.policy_logits, rollout.value],
        strict=True,
    ):
        assert torch.equal(one, other)


SMALL_RUN = (
    "--algo impala --env recall --core none --encoder-sizes 16 --unroll-length 8 --actors 2 "
    "--lanes-per-actor 4 --log-every 0.5 --no-video --eval-episodes 3 --device cpu --threads 1"
)
FLAGS = SMALL_RUN.split()


def scalars(run: Path) -> dict[str, list[float]]:
    events = events_of(run)
    return {name: [event.value for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


@pytest.mark.slow
def test_a_run_resumes_evaluates_and_shows_its_lag(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert cli.main([*FLAGS, "--log-every", "1e-9", "--total-frames", "1280", "--run-dir", str(run)]) == 0
    assert cli.main(["--resume", str(run), "--total-frames", "2560"]) == 0
    output = capsys.readouterr().out
    assert "actors: 2 of 4 lanes (local)" in output
    assert "resumed from" in output
    assert "the resume is not exact" in output
    assert json.loads((run / "summary.json").read_text())["frames"] == 2560
    _, tree = find_and_load(run)
    played = [state["sequence"] for state in tree["actors"]]
    assert sum(played) >= tree["updates"] * 2 == 80  # what was dropped has been played too
    assert evaluate_cli.main([str(run), "--episodes", "2"]) == 0
    found = scalars(run)
    for name in ("policy_lag", "queue_depth", "learner_idle", "actor_idle", "rollouts_stale", "rollouts_unfit"):
        assert found[f"actors/{name}"], name
    assert max(found["actors/policy_lag"]) <= 16
    assert all(0.0 <= share <= 1.0 for share in found["actors/learner_idle"] + found["actors/actor_idle"])


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--batch-rollouts", "3"], "batch_rollouts: expected at most as many as there are actors, 2, got 3"),
        (["--max-policy-lag", "1"], "max_policy_lag: expected at least actors * rollouts_ahead / batch_rollouts = 2"),
        (["--diagnostics"], "diagnostics: expected algo a2c, ppo or supervised, got impala"),
        (["--env-workers", "2"], "env_workers: expected 0 for impala"),
        (["--actors", "100000", "--max-policy-lag", "100000"], "actors: expected at most"),
    ],
)
def test_settings_that_do_not_fit_are_one_line(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refused(capsys, cli, *FLAGS, *flags, "--run-dir", tmp_path / "run")


def test_an_update_of_one_frame_has_no_normalised_advantage() -> None:
    one = {"algo": "impala", "actors": 1, "lanes_per_actor": 1, "unroll_length": 1}
    with pytest.raises(ValueError, match="updates: expected at least 2 frames"):
        check_settings(Config().updated(one, "test"))
    check_settings(Config().updated(one | {"normalize_advantages": False}, "test"))


def test_the_actors_of_all_learners_share_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer, "available_memory", lambda: 10 * trainer.BYTES_OF_ACTOR)
    check_settings(Config().updated({"algo": "impala", "actors": 8}, "test"))
    with pytest.raises(ValueError, match="actors: expected at most 2 of each learner, limited by memory, got 8"):
        check_settings(Config().updated({"algo": "impala", "actors": 8, "learners": 4}, "test"))


@pytest.mark.parametrize(("actors", "rollouts"), [(1, 1), (2, 2), (5, 2), (32, 11)])
def test_rollouts_per_update_follow_the_number_of_actors(actors: int, rollouts: int) -> None:
    config = Config().updated({"algo": "impala", "actors": actors}, "test")
    check_settings(config)
    assert config.actors.rollouts_per_update == rollouts


def test_rollouts_taken_when_another_learner_fails_are_not_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    impala, states = Impala(small_trainer().config.updated(ACTORS, "test"), CPU), [None, None]

    def take(count: int) -> list[Any]:
        states[:] = [{"sequence": 1}] * count
        return []

    @contextmanager
    def failing_together() -> Iterator[None]:
        yield
        raise WorkerError("learner 1 has failed")

    monkeypatch.setattr(trainer.distributed, "failing_together", failing_together)
    impala._pool = SimpleNamespace(take=take, get_state=lambda: list(states))  # type: ignore[assignment]
    impala._learned = [None, None]
    with pytest.raises(WorkerError):
        impala.update()
    assert impala.get_state()["actors"] == [None, None]


@pytest.mark.slow
def test_an_environment_that_fails_ends_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(counting.FAULT, "raise")
    monkeypatch.setattr(pool, "TRIES", 1)
    flags = ["--env", "helpers.counting:Counting-v0", "--actors", "1", "--batch-rollouts", "auto"]
    assert cli.main([*FLAGS, *flags, "--total-frames", "10000", "--run-dir", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("Traceback") == 1
    assert "RuntimeError: it lost count of everything" in error.splitlines()[-1]
    assert find_and_load(tmp_path / "run")[1]["frames"] == 0
