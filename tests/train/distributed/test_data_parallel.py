"""Several learners: the step equals that of one with all rollouts; the same weights, one run folder, a common end."""

import os
import signal
import time
from multiprocessing import active_children, forkserver
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import forked
from helpers.agents import before_update
from helpers.runs import QUIET, SMALL, assert_same, find_and_load, newest, wait_for_checkpoints
from helpers.system import descendants, last_child, running
from helpers.two_learners import run_two
from rmc_agents.config import Config
from rmc_agents.envs.processes import WorkerError
from rmc_agents.episodes import Episode
from rmc_agents.evaluate.cli import main as evaluate
from rmc_agents.runs import checkpoint
from rmc_agents.train import cli, distributed
from rmc_agents.train.impala.actors import CPU, Actor, pack_weights
from rmc_agents.train.impala.trainer import Impala, concatenated
from rmc_agents.types import Rollout

pytestmark = pytest.mark.slow
SETTINGS = {"algo": "impala", "core": "lstm", "hidden_size": 16, "unroll_length": 5, "lanes_per_actor": 4, "actors": 2}
CONFIG = Config().updated(SETTINGS | {"normalize_advantages": False, "max_grad_norm": 1e-3, "device": "cpu"}, "test")
FLAGS = ["--algo", "impala", "--env", "recall", "--core", "none", "--unroll-length", "5", "--lanes-per-actor", "4"]
FLAGS += ["--encoder-sizes", "8", "--actors", "1", "--batch-rollouts", "1", "--device", "cpu", *QUIET]
FRAMES_PER_UPDATE = 2 * 5 * 4


def rollout_of(trainer: Impala, *actors: Actor) -> Rollout:
    """What they play next, with the trainer's weights."""
    for actor in actors:
        actor.take_weights(trainer.updates, pack_weights(trainer.agent))
    return concatenated([actor.act(waited=0.0).rollout for actor in actors], CPU)


def clipped_gradients(trainer: Impala, rollout: Rollout) -> dict[str, Any]:
    weights = {name: tensor.clone() for name, tensor in trainer.agent.state_dict().items()}
    metrics = trainer.learn(rollout)
    trainer.agent.load_state_dict(weights)
    gradients = {name: parameter.grad.clone() for name, parameter in trainer.agent.named_parameters()}
    return {"norm": float(metrics["losses/grad_norm"]), "gradients": gradients}


def learner(rank: int, port: int, folder: Path) -> None:
    """One of two learners; writes its records to a file."""
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    with distributed.joined():
        trainer = Impala(CONFIG, CPU)
        actors = [Actor(CONFIG, index, learner=rank) for index in range(2)]
        seen = clipped_gradients(trainer, rollout_of(trainer, *actors))
        for _ in range(3):
            trainer.learn(rollout_of(trainer, *actors))
        seen["weights"] = dict(trainer.agent.state_dict())
        backend = torch.distributed.distributed_c10d._get_default_group()._get_backend(CPU)
        seen["timeout"] = backend.options._timeout.total_seconds()
        seen["highest"] = distributed.highest(rank)
        seen["shared"] = distributed.broadcast_tree({"of": rank, "tensor": torch.arange(3) + rank})
        episodes = distributed.gather_episodes([Episode(1.5, 3, None, rank), Episode(0.0, 10**rank, True, 7)])
        seen["episodes"] = [list(episode) for episode in episodes]
        seen["gathered"] = distributed.gather([None, {"of": rank, "tensor": torch.ones(10**rank)}])
        try:
            with distributed.failing_together():
                if rank == 1:
                    raise WorkerError("its own")
        except WorkerError as error:
            seen["failed"] = [type(error).__name__, str(error)]
        if rank == 0:
            try:
                distributed.highest(0)
            except distributed.LearnerLost as error:
                seen["lost"] = str(error)
    checkpoint.save(folder / str(rank), seen)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two learners recorded."""
    return run_two(learner, tmp_path_factory.mktemp("two"))


def test_a_learner_may_be_waited_for_as_long_as_it_lives(two: list[dict[str, Any]]) -> None:
    assert [seen["timeout"] for seen in two] == [distributed.FOREVER.total_seconds()] * 2


def test_the_mean_gradient_of_halves_is_the_gradient_of_the_whole(two: list[dict[str, Any]]) -> None:
    trainer = Impala(CONFIG, CPU)
    rollout = rollout_of(trainer, *(Actor(CONFIG, index) for index in range(4)))
    assert not rollout.steps.is_first[1:].any()  # so that either half has as many transitions
    whole = clipped_gradients(trainer, rollout)
    assert whole["norm"] > CONFIG.train.max_grad_norm  # it was clipped
    for seen in two:
        assert seen["norm"] == pytest.approx(whole["norm"], rel=1e-4)
        torch.testing.assert_close(seen["gradients"], whole["gradients"], rtol=1e-4, atol=1e-8)


def test_all_learners_have_bitwise_the_same_weights(two: list[dict[str, Any]]) -> None:
    assert_same(two[0]["weights"], two[1]["weights"])
    fresh = Impala(CONFIG, CPU).agent.state_dict()
    assert any(not torch.equal(weight, fresh[name]) for name, weight in two[0]["weights"].items())


def test_what_learners_exchange(two: list[dict[str, Any]]) -> None:
    items = [[None, {"of": rank, "tensor": torch.ones(10**rank)}] for rank in range(2)]
    assert two[0]["episodes"] == [[1.5, 3, None, 0], [0.0, 1, True, 7], [1.5, 3, None, 1], [0.0, 10, True, 7]]
    assert_same(two[0]["gathered"], items[0] + items[1])
    assert_same(two[1]["gathered"], items[1])
    for seen in two:
        assert seen["highest"] == 1
        assert_same(seen["shared"], {"of": 0, "tensor": torch.arange(3)})


def test_a_failure_of_one_is_one_of_all(two: list[dict[str, Any]]) -> None:
    kind, message = two[0]["failed"]
    assert (kind, message.split(" (")[0]) == ("WorkerError", "learner 1: WorkerError: its own")
    assert two[1]["failed"][0] == "OtherFailed"
    assert "one of the 2 learners has ended" in two[0]["lost"]


# As torchrun --standalone --nproc-per-node 2 --no-python rmc-train, with forks: programs would import torch again.
TORCHRUN = """
from torch.distributed.launcher.api import LaunchConfig, elastic_launch
from rmc_agents.train.cli import main
rendezvous = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "two"}
elastic_launch(LaunchConfig(1, 1, 2, **rendezvous, max_restarts=0, start_method="fork"), main)(sys.argv[1:])
"""


def errors_of_learners(output: str) -> list[str]:
    """Error messages except for torchrun's own."""
    return [line for line in output.splitlines() if line.startswith(("rmc-train: ", "[rank"))]


def wait_until_ended(processes: set[int]) -> None:
    """Actors notice within moments that their learner has ended."""
    deadline = time.monotonic() + 60
    while processes & running().keys():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_impala_loses_a_learner_and_continues_with_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir, started = tmp_path / "run", set[int]()
    forkserver.ensure_running()  # it and multiprocessing's tracker go on after the run
    earlier = descendants(os.getpid())

    def kill() -> None:
        started.update(descendants(os.getpid()) - earlier)
        (other,) = (process for process in active_children() if not process.daemon)  # the rest are actors
        other.kill()

    before_update(monkeypatch, 2, kill, Impala)
    flags = [*FLAGS, "--learners", "2", "--run-dir", str(run_dir)]
    assert cli.main([*flags, "--total-frames", "10000000", "--save-every", "1e-9"]) == 2
    assert len(started) >= 4  # the other learner, an actor of each, and the ps that lists them
    wait_until_ended(started)
    monkeypatch.undo()
    saved = newest(run_dir)
    assert saved["frames"] == saved["updates"] * FRAMES_PER_UPDATE
    assert [actor["sequence"] for actor in saved["actors"]] == [saved["updates"]] * 2

    total = saved["frames"] + FRAMES_PER_UPDATE // 2
    assert cli.main(["--resume", str(run_dir), "--total-frames", str(total), "--learners", "1"]) == 0
    assert [actor["sequence"] for actor in newest(run_dir)["actors"]] == [saved["updates"] + 1]
    assert os.listdir(tmp_path) == ["run"]


def test_torchruns_processes_share_the_lanes_of_ppo_and_stop_together(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    flags = [*SMALL, *QUIET, "--core", "none", "--device", "cpu", "--total-frames", "10000000", "--save-every", "1e-9"]
    process = forked.Program(TORCHRUN, [*flags, "--run-dir", str(run_dir)], tmp_path / "log")
    wait_for_checkpoints(run_dir, 2, process)
    assert process.pid is not None
    processes = descendants(process.pid)
    os.kill(last_child(process.pid), signal.SIGINT)
    out, _ = process.communicate()
    wait_until_ended(processes)
    assert errors_of_learners(out) == []
    assert "8 lanes on cpu shared by 2 learners" in out
    assert out.count("stopped by SIGINT and saved") == 1
    assert f"rmc-train --resume {run_dir}" in out
    tree = find_and_load(run_dir)[1]
    assert (tree["config"]["learners"], len(tree["collector"]["lanes"]["returns"])) == (2, 8)
    assert evaluate([str(run_dir), "--episodes", "2"]) == 0
