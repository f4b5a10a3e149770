"""Several learners of A2C, PPO and supervised learning compute what one would with all lanes, and end together."""

import copy
import os
import signal
import sys
from collections.abc import Iterator
from functools import partial
from multiprocessing import Pipe, active_children
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from gymnasium.vector import SyncVectorEnv

import rmc_agents as rmc
from helpers.agents import before_update, make_agent, set_gradients
from helpers.homemade import name_of
from helpers.noise import Noise
from helpers.runs import QUIET, SMALL, assert_same, newest, refused, resume, start_process, wait_for_checkpoints
from helpers.system import descendants, running
from helpers.two_learners import run_two
from rmc_agents import losses
from rmc_agents.agent import ActorCritic
from rmc_agents.config import Config
from rmc_agents.envs.processes import Fault
from rmc_agents.runs import checkpoint
from rmc_agents.train import cli, distributed
from rmc_agents.train.algorithms import make_trainer
from rmc_agents.train.distributed import learners
from rmc_agents.train.distributed.shares import merged, part, split_lanes
from rmc_agents.train.on_policy import OnPolicy, minibatches
from rmc_agents.train.optimizers import make_optimizer
from rmc_agents.train.run import train
from rmc_agents.types import at

CPU = torch.device("cpu")
SIZES: dict[str, Any] = {"hidden_size": 8, "mem_slots": 2, "head_size": 4, "encoder_sizes": [8]}
SIZES |= {"num_envs": 7, "unroll_length": 6, "backend": "reference", "device": "cpu", "optimizer": "adam"}
SIZES |= {"learning_rate": 0.01, "adam_epsilon": 0.01}  # else rounding decides tiny gradients' signs
CASES: dict[str, dict[str, Any]] = {
    "a2c": {"algo": "a2c", "core": "lstm", "env": "program"},
    "ppo": {"algo": "ppo", "core": "rmc", "env": "program", "ppo_epochs": 2, "ppo_minibatches": 3},
    "supervised": {"algo": "supervised", "core": "gru", "env": "nth-farthest"},
    "own loss": {"algo": "a2c", "core": "gru", "env": "program", "loss": "own_a2c"},
}


def own_a2c(agent: ActorCritic, rollout: rmc.Rollout, targets: losses.Targets) -> Any:
    """A2C's loss."""
    output, _ = agent.unroll(at(rollout.steps, slice(-1)), rollout.initial_state)
    return losses.actor_critic(output, rollout, targets, value_cost=0.5, entropy_cost=0.03)


def named_by_rank(agent: ActorCritic, rollout: rmc.Rollout, targets: losses.Targets) -> Any:
    """A loss whose metrics differ between learners."""
    return agent.value.bias.sum(), {f"learner_{distributed.rank()}": 0.0}


def make(case: str, learners: int, **settings: Any) -> OnPolicy:
    rmc.register_loss("own_a2c", own_a2c)
    rmc.register_loss("named_by_rank", named_by_rank)
    trainer = make_trainer(Config().updated(SIZES | CASES[case] | {"learners": learners} | settings, "test"), CPU)
    assert isinstance(trainer, OnPolicy)
    return trainer


def learned(trainer: OnPolicy, updates: int) -> dict[str, Any]:
    """After this many updates: all that a checkpoint has, and the last metrics."""
    metrics = [trainer.update() for _ in range(updates)][-1]
    return copy.deepcopy({"state": trainer.get_state(), "metrics": metrics})


def learner(rank: int, port: int, folder: Path) -> None:
    """One of two learners; writes its records to a file."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    seen = {}
    with distributed.joined():
        for case in CASES:
            first = learned(trainer := make(case, learners=2), updates=2)
            seen[case] = {"first": first, "second": learned(trainer, updates=1)}
            other = make(case, learners=2)
            other.set_state(distributed.broadcast_tree(first["state"]))
            seen[case]["resumed"] = learned(other, updates=1)
        seen["muon"] = stepped_by_muon()
        with pytest.raises(ValueError, match=r"metrics|first learner") as refused:
            make("own loss", learners=2, loss="named_by_rank").update()
        seen["refusal"] = str(refused.value)
        own = torch.nn.BatchNorm1d(3)
        own.running_mean.add_(1 + rank)  # type: ignore[operator, union-attr]
        own.num_batches_tracked.add_(2**40 + rank)  # type: ignore[operator, union-attr]
        own.register_buffer("rotation", torch.tensor([1j + rank]))
        distributed.share_buffers(own)
        seen["buffers"] = dict(own.named_buffers())
        weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
        weights[rank].grad = torch.tensor([2.0, 4.0])  # the other one's is None
        distributed.average(weights, {}, torch.tensor(1 + rank))
        seen["gradients"] = [each.grad for each in weights]
    checkpoint.save(folder / str(rank), seen)


def stepped_by_muon() -> dict[str, Any]:
    """Weights after three steps of Muon, its state after two, and the weights when another continues from there."""
    config, weights = Config().updated({"optimizer": "muon"}, "test").train, []
    torch.manual_seed(0)
    agent, other = (make_agent("rmc", head_size=16) for _ in range(2))
    optimizer, resumed = make_optimizer(agent, config), make_optimizer(other, config)
    for seed in range(2):
        set_gradients(agent, seed)
        optimizer.step()
    state = copy.deepcopy(optimizer.get_state())
    resumed.set_state(copy.deepcopy(state))
    other.load_state_dict(agent.state_dict())
    for each, taken in ((agent, optimizer), (other, resumed)):
        set_gradients(each, 2)
        taken.step()
        weights.append(dict(each.state_dict()))
    return {"weights": weights, "state": state}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two learners recorded."""
    return run_two(learner, tmp_path_factory.mktemp("two"))


def unions(trainer: OnPolicy) -> Iterator[torch.Tensor]:
    """The minibatches of two learners, as one has them."""
    halves = split_lanes(7, learners=2)
    for parts in minibatches(halves, trainer.train.ppo_epochs, trainer.train.ppo_minibatches, trainer.shuffling):
        yield torch.cat([lanes + half.first for lanes, half in zip(parts, halves, strict=True)])


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_learners_compute_what_one_does(two: list[dict[str, Any]], case: str) -> None:
    """Actions, episodes, weights and optimizer after two updates, and the last one's metrics."""
    trainer = make(case, learners=1)
    if case == "ppo":
        trainer._minibatches = partial(unions, trainer)  # type: ignore[method-assign]
    expected, found = learned(trainer, updates=2), two[0][case]["first"]
    lanes = expected["state"]["collector"]["lanes"]
    assert torch.equal(found["state"]["collector"]["lanes"]["steps"][0], lanes["steps"][0])  # they see the same
    for name, tree in (("env", lanes["env"]), ("returns", lanes["returns"]), ("lengths", lanes["lengths"])):
        assert_same(found["state"]["collector"]["lanes"][name], tree)
    assert_same(found["state"]["collector"]["generator"], expected["state"]["collector"]["generator"])
    assert_same(found["state"]["torch_rng"], expected["state"]["torch_rng"])
    for name, weight in expected["state"]["agent"].items():
        torch.testing.assert_close(found["state"]["agent"][name], weight, rtol=1e-3, atol=1e-6)
    assert found["metrics"].keys() == expected["metrics"].keys()
    for name in expected["metrics"].keys() - {"losses/explained_variance", "charts/recurrent_state_norm"}:
        torch.testing.assert_close(found["metrics"][name], expected["metrics"][name], rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_two_learners_agree_and_continue_exactly(two: list[dict[str, Any]], case: str) -> None:
    first, second = (seen[case]["second"] for seen in two)
    for name in ("agent", "optimizer", "torch_rng", "frames"):
        assert_same(first["state"][name], second["state"][name])
    assert_same(two[0][case]["resumed"], first)


@pytest.mark.slow
def test_learners_share_muons_work(two: list[dict[str, Any]]) -> None:
    """Bitwise what one learner computes, with its state: each matrix is stepped by one of them."""
    expected = stepped_by_muon()
    for seen in two:
        assert_same(seen["muon"], expected)
    assert_same(*expected["weights"])


@pytest.mark.slow
def test_own_losses_with_other_metrics_are_refused(two: list[dict[str, Any]]) -> None:
    message = "named_by_rank: expected the metrics of the first call, learner_0, got learner_1"
    assert message in two[0]["refusal"]
    assert two[1]["refusal"] == "the first learner reports the reason"


@pytest.mark.slow
def test_all_have_the_first_learners_buffers(two: list[dict[str, Any]]) -> None:
    first = torch.nn.BatchNorm1d(3)
    expected = dict(first.named_buffers()) | {"running_mean": torch.ones(3), "num_batches_tracked": torch.tensor(2**40)}
    for seen in two:
        assert_same(seen["buffers"], expected | {"rotation": torch.tensor([1j])})


@pytest.mark.slow
def test_a_gradient_that_one_learner_does_not_have_counts_as_zero(two: list[dict[str, Any]]) -> None:
    for seen in two:
        *weighted, nowhere = seen["gradients"]
        torch.testing.assert_close(weighted, [torch.tensor([2.0, 4.0]) / 3, torch.tensor([4.0, 8.0]) / 3])
        assert nowhere is None


@pytest.mark.slow
def test_any_number_of_learners_continues(two: list[dict[str, Any]]) -> None:
    saved = two[0]["ppo"]["first"]["state"]
    trainer = make("ppo", learners=1)
    trainer.set_state(saved)
    assert_same(trainer.collector.get_state(), saved["collector"])
    assert trainer.resume_notes(saved) == [
        "the number of learners is 1 instead of 2: sums are rounded in another order, so the resume is not exact"
    ]
    assert trainer.update()["losses/grad_norm"].isfinite()


def test_lanes_are_dealt_out_in_order() -> None:
    assert [(share.first, share.lanes, share.total) for share in split_lanes(7, learners=3)] == [
        (0, 2, 7),
        (2, 2, 7),
        (4, 3, 7),
    ]


def test_joined_states_are_those_of_all_lanes() -> None:
    """Some lanes have reached levels with more ghosts than the arrays of others have room for."""
    trainer = OnPolicy(Config().updated(SIZES | {"env": "minipacman", "core": "lstm"}, "test"), CPU)
    trainer.update()
    state = trainer.collector.get_state()
    halves = [part(state, share) for share in split_lanes(7, learners=2)]
    assert_same(merged(halves), state)
    room = {name: np.pad(state["lanes"]["env"][name], [(0, 0), (0, 4)]) for name in ("ghost_cell", "ghost_heading")}
    halves[0]["lanes"]["env"] |= {name: array[:3] for name, array in room.items()}
    trainer.collector.set_state(merged(halves))
    state["lanes"]["env"] |= {
        "ghost_cell": np.pad(state["lanes"]["env"]["ghost_cell"], [(0, 0), (0, 4)], constant_values=255)
    }
    state["lanes"]["env"] |= {"ghost_heading": room["ghost_heading"]}
    assert_same(trainer.collector.get_state(), state)


def test_a_state_that_is_not_by_lanes_is_not_joined() -> None:
    trainer = OnPolicy(Config().updated(SIZES | {"env": "minipacman", "core": "lstm"}, "test"), CPU)
    state = trainer.collector.get_state()
    halves = [part(state, share) for share in split_lanes(7, learners=2)]
    halves[1]["lanes"]["env"]["generator"] = np.zeros(7)
    assert (merged(halves)["lanes"], merged(halves)["core"]) == (None, None)
    halves[1]["lanes"] = None  # a learner whose environment has failed
    assert (merged(halves)["lanes"], merged(halves)["core"]) == (None, None)
    state["lanes"]["env"]["generator"] = np.zeros(10)
    half = part(state, split_lanes(7, learners=2)[0])
    assert (half["lanes"], half["core"]) == (None, None)


def test_a_resume_says_that_learners_cannot_share_a_state_that_is_not_by_lanes() -> None:
    saved = make("a2c", 1).get_state()
    trainer = make("a2c", 2)
    assert len(trainer.resume_notes(saved)) == 1  # about the number of learners
    saved["collector"]["lanes"]["env"] = {"steps": 5}
    assert trainer.resume_notes(saved)[-1].startswith("this environment's state has no axis of lanes, so learners")


def test_other_learners_do_not_count_the_memory_that_all_have_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config().updated({"num_envs": 64, "learners": 2}, "test")
    monkeypatch.setattr(learners, "_room", lambda: 1)
    with pytest.raises(ValueError, match="limited by memory"):
        learners.with_number(config, CPU)
    monkeypatch.setattr(distributed, "size", lambda: 2)
    assert learners.with_number(config, CPU).run.learners == 2


def test_an_update_without_a_step_has_no_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    weight.grad = torch.full((2,), torch.nan)
    monkeypatch.setattr(distributed, "size", lambda: 2)
    monkeypatch.setattr(distributed, "total", lambda tensor: 2 * tensor)
    metrics = distributed.average([weight], {"loss": torch.tensor(torch.nan)}, torch.tensor(0))
    assert weight.grad.tolist() == [0, 0]
    assert metrics["loss"] == 0


def test_gradients_in_any_memory_layout_are_averaged(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.ones(3, 2).T)
    weight.grad = torch.arange(6.0).reshape(3, 2).T
    expected = weight.grad.clone()
    monkeypatch.setattr(distributed, "size", lambda: 2)
    monkeypatch.setattr(distributed, "total", lambda tensor: 2 * tensor)
    distributed.average([weight], {}, torch.tensor(5))
    assert torch.equal(weight.grad, expected)


def test_tracebacks_look_as_before_after_learners_were_connected() -> None:
    before = sys.excepthook
    distributed.connect(gpu=1000, store=dist.HashStore(), rank=0, learners=1)
    try:
        assert sys.excepthook is before
    finally:
        dist.destroy_process_group()


def test_as_many_learners_as_cores_with_lanes_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learners, "cpu_cores", lambda: 6)
    monkeypatch.setattr(learners, "idle_cpus", lambda: 8)
    numbers = []
    for settings in (
        {"num_envs": 256},
        {"num_envs": 128},
        {"num_envs": 16},
        {"num_envs": 256, "ppo_minibatches": 100},
        {"algo": "impala", "num_envs": 256},
        {"algo": "sb3-ppo", "num_envs": 256},
    ):
        config = Config().updated(settings | {"learners": "auto"}, "test")
        numbers.append(learners.with_number(config, CPU).run.learners)
    assert numbers == [6, 4, 1, 2, 1, 1]
    monkeypatch.setattr(learners, "idle_cpus", lambda: 3)  # other programs use the others
    config = Config().updated({"num_envs": 256, "learners": "auto"}, "test")
    assert learners.with_number(config, CPU).run.learners == 3


def test_a_script_that_torchrun_starts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ValueError, match="torchrun has started 2, and only rmc-train joins them"):
        train({"core": "none"}, run_dir=tmp_path / "never")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--num-envs", "8", "--learners", "3"], "learners: expected at most 2, each with a lane in every minibatch"),
        (["--algo", "a2c", "--num-envs", "2", "--learners", "3"], "for num_envs 2, got 3"),
        (["--algo", "sb3-a2c", "--learners", "2"], "learners: expected 1 for sb3-a2c, which uses one process, got 2"),
        (["--env", "CartPole-v1", "--env-workers", "2", "--learners", "2"], "env_workers: expected 0 for 2 learners"),
        (["--learners", "900", "--num-envs", "9000"], "limited by memory, got 900"),
        (["--learners", "0"], "learners"),
        (["--learners", "all"], "learners"),
    ],
)
def test_refusals(capsys: pytest.CaptureFixture[str], tmp_path: Path, flags: list[str], message: str) -> None:
    assert message in refused(capsys, cli, *flags, "--device", "cpu", "--run-dir", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_settings_that_do_not_apply_to_a_given_vector_environment_are_refused() -> None:
    with pytest.raises(ValueError, match="learners: expected 1 for a vector environment object, got 2"):
        train({"learners": 2}, env=SyncVectorEnv([Noise] * 4))
    for settings in ({"env_kwargs": {"size": 9}}, {"env_workers": 3}, {"env_backend": "minigrid"}):
        with pytest.raises(ValueError, match=f"{next(iter(settings))}: expected none for a vector environment object"):
            train(settings, env=SyncVectorEnv([Noise] * 4))


def test_the_learner_that_failed_is_distinguished_from_those_that_end_with_it() -> None:
    others = []
    for exit_code, message in ((0, None), (None, None), (-9, None), (0, Fault("failed: no luck", "trace"))):
        ours, theirs = Pipe()
        theirs.send(message) if message else None
        theirs.close()
        other = object.__new__(learners._Other)
        other.connection, other.process = ours, SimpleNamespace(exitcode=exit_code, join=lambda seconds: None)
        others.append(other)
    lost = distributed.LearnerLost("another")
    assert learners._explained(lost, others[:2]) is lost
    assert "learner 3 was killed by SIGKILL" in str(learners._explained(lost, others))
    explained = learners._explained(lost, others[3:])
    assert (str(explained).split(";")[0], explained.__notes__) == ("learner 1 failed: no luck", ["trace"])


def test_a_learner_that_dies_before_it_has_connected_is_not_waited_for() -> None:
    store = dist.HashStore()
    store.set(learners._key(1), "")
    others: Any = [SimpleNamespace(process=Mock(is_alive=lambda alive=alive: alive)) for alive in (True, False)]
    learners._await(store, others[:1])
    with pytest.raises(distributed.LearnerLost):
        learners._await(store, others)


RUN = ["--env", "recall", "--core", "none", "--learners", "2", "--device", "cpu", "--algo", "a2c"]
ENDLESS = [*RUN, "--total-frames", "100000000", "--save-every", "1e-9"]


@pytest.mark.slow
def test_ctrl_c_saves_and_stops_all_and_the_run_continues(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    process = start_process(*ENDLESS, "--run-dir", str(run_dir := tmp_path / "run"))
    wait_for_checkpoints(run_dir, 2, process)
    processes = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=600)
    assert (process.returncode, err) == (130, "")
    assert f"stopped by SIGINT and saved; continue with: rmc-train --resume {run_dir}" in out
    assert processes
    assert not processes & running().keys()
    frames = newest(run_dir)["frames"]
    assert resume(run_dir, "--learners", "1", "--total-frames", str(frames + 40)) == 0
    assert "the number of learners is 1 instead of 2" in capsys.readouterr().out
    assert newest(run_dir)["frames"] == frames + 40


@pytest.mark.slow
def test_a_learner_that_is_killed_ends_all(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first learner is this process."""
    run_dir = tmp_path / "run"

    def kill() -> None:
        (other,) = active_children()
        other.kill()

    before_update(monkeypatch, 2, kill)
    assert cli.main([*SMALL, *QUIET, *ENDLESS, "--run-dir", str(run_dir)]) == 2
    output = capsys.readouterr()
    assert output.err.splitlines()[-1].startswith("rmc-train: learner 1 was killed by SIGKILL")
    assert f"continue from the newest checkpoint with: rmc-train --resume {run_dir}" in output.out.replace("\n", "")
    assert active_children() == []
    assert newest(run_dir)["updates"] >= 2


@pytest.mark.slow
def test_an_environment_fails_in_another_learner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The first learner reports it, and what was learned is saved."""
    flags = [*RUN, "--env", name_of("nan reward"), "--num-envs", "2", "--unroll-length", "5"]
    assert cli.main([*flags, "--run-dir", str(tmp_path / "run")]) == 2  # a reward is NaN in the second lane
    output = capsys.readouterr()
    assert "learner 1: " in output.err
    assert "saved at 20 frames; once the cause is removed, continue with" in output.out
    assert newest(tmp_path / "run")["frames"] == 20
