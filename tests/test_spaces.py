"""Environments with all kinds of spaces are learned in, resumed, evaluated and played, on every way to an agent."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

import rmc_agents as rmc
from helpers.zoo import LENGTH, SPACES, Zoo
from rmc_agents import losses
from rmc_agents.config import Config
from rmc_agents.envs.making import make_env
from rmc_agents.envs.processes import EnvError
from rmc_agents.evaluate.episodes import PlaySettings, UniformPolicy, play
from rmc_agents.runs import checkpoint
from rmc_agents.spaces import SpaceSpec
from rmc_agents.spaces.parts import array_spec
from rmc_agents.stream import Lanes
from rmc_agents.train.impala.actors import Actor, ParcelReader
from rmc_agents.train.impala.trainer import concatenated
from rmc_agents.train.on_policy import OnPolicy
from rmc_agents.types import map_leaves

CPU = torch.device("cpu")
LANES = 3
SIZES = {"core": "lstm", "hidden_size": 8, "encoder_sizes": [8], "num_envs": LANES, "unroll_length": 7}


def trainer_of(kind: str, algo: str = "ppo", **settings: object) -> OnPolicy:
    own = {"algo": algo, "env": f"helpers.zoo:Zoo-{kind}-v0"}
    return OnPolicy(Config().updated(own | SIZES | settings, "test").settled(), CPU)


def leaves_of(tree: Any) -> list[torch.Tensor]:
    found: list[torch.Tensor] = []
    map_leaves(lambda leaf: found.append(leaf) or leaf, tree)
    return found


@pytest.mark.parametrize("kind", SPACES)
def test_a_run_continues_exactly(kind: str) -> None:
    whole, resumed = trainer_of(kind), trainer_of(kind, seed=5)
    whole.update()
    state = checkpoint.from_bytes(checkpoint.to_bytes(whole.get_state()), "test")
    assert SpaceSpec.from_fields(state["spec"]) == whole.lanes.spec
    resumed.config, state["config"] = whole.config, whole.config.to_mapping()
    resumed.set_state(state)
    for trainer in (whole, resumed):
        torch.manual_seed(0)  # of the minibatches
        trainer.update()
    for one, other in zip(
        leaves_of(whole.collector.rollout[:4]), leaves_of(resumed.collector.rollout[:4]), strict=True
    ):
        assert torch.equal(one, other)
    for name, parameter in whole.agent.state_dict().items():
        assert torch.equal(parameter, resumed.agent.state_dict()[name]), name


@pytest.mark.parametrize("kind", SPACES)
def test_learning_sees_what_acting_saw(kind: str) -> None:
    trainer = trainer_of(kind, "a2c")
    rollout = trainer.collector.collect()
    output, _ = trainer.agent.unroll(rollout.steps, rollout.initial_state)
    torch.testing.assert_close(output.policy_logits[:-1], rollout.policy_logits, rtol=1e-4, atol=1e-5)
    ratio = losses.action_log_ratio(losses.distribution_of(rollout, output.policy_logits), rollout)
    torch.testing.assert_close(ratio, torch.zeros_like(ratio), rtol=0, atol=1e-4)
    assert trainer.learn(rollout)["losses/grad_norm"] > 0


@pytest.mark.parametrize("kind", SPACES)
def test_evaluation_and_the_player_do_the_same(kind: str) -> None:
    """The environment rejects actions outside its space, and its rewards encode the action."""
    agent = trainer_of(kind).agent.eval()
    returns = play(agent, f"helpers.zoo:Zoo-{kind}-v0", LANES, PlaySettings(3, CPU, deterministic=True)).returns
    for lane in range(LANES):
        env, player, total = Zoo(kind), rmc.Player(agent, deterministic=True), 0.0
        obs, info = env.reset(seed=3 + lane)
        action, ended = player.act(obs, action_mask=info.get("action_mask")), False
        while not ended:
            obs, reward, ended, truncated, info = env.step(action)
            total += reward
            if not ended:
                action = player.act(obs, reward, ended, truncated, info.get("action_mask"))
        assert total == pytest.approx(returns[lane], rel=1e-5)


@pytest.mark.parametrize("kind", ["Mask", "MaskInfo"])
def test_a_player_asks_for_the_masks_of_the_training(kind: str, tmp_path: Path) -> None:
    trainer = trainer_of(kind)
    player = rmc.Player(rmc.load(trainer.save(tmp_path, 0.0), device="cpu"))
    obs, _ = Zoo(kind).reset(seed=0)
    if kind == "Mask":
        del obs["action_mask"]
    with pytest.raises(ValueError, match=r"action_mask: expected one, as in .* training .* pass action_mask=info\["):
        player.act(obs)
    allowed = np.arange(4) == 2
    with pytest.raises(ValueError, match=r"expected 4 flags, 0 or 1, in each lane, got -1000000000"):
        player.act(obs, action_mask=np.where(allowed, 0.0, -1e9))
    assert player.act(obs, action_mask=allowed) == 2 + (kind == "MaskInfo")


@pytest.mark.parametrize("kind", ["Nested", "TupleActions", "Mask", "MaskMany"])
def test_actors_send_what_they_have_seen_and_done(kind: str) -> None:
    config = Config().updated(SIZES | {"algo": "impala", "env": f"helpers.zoo:Zoo-{kind}-v0"}, "test").settled()
    actor = Actor(config, 0)
    actor.version = 0
    reader = ParcelReader(actor.act(0.0).rollout, actor.lanes.spec)
    parcel = actor.act(0.0)
    got = reader.open(parcel.to_bytes(), 0).rollout
    for one, other in zip(leaves_of(parcel.rollout[:4]), leaves_of(got[:4]), strict=True):
        assert torch.equal(one, other)
    both = concatenated([got, got], CPU)
    output, _ = actor.agent.unroll(both.steps, both.initial_state)
    loss, metrics = losses.vtrace(output, both, discount=0.9)
    assert metrics["losses/rho_mean"].item() == pytest.approx(1, abs=1e-4)
    assert torch.isfinite(loss)


@pytest.mark.parametrize("kind", ["Nested", "TupleActions", "Mask", "MaskMany"])
def test_workers_give_what_lanes_in_this_process_give(kind: str) -> None:
    envs = [make_env(f"helpers.zoo:Zoo-{kind}-v0", LANES, num_workers=workers) for workers in (0, 2)]
    lanes = [Lanes(env, 0, CPU) for env in envs]
    policy = UniformPolicy(lanes[0].spec)
    for _ in range(7):
        output, _ = policy.step(lanes[0].steps, ())
        action = lanes[0].spec.distribution(output.policy_logits).mode()
        one, other = (each.step(action) for each in lanes)
        assert all(torch.equal(x, y) for x, y in zip(leaves_of(one), leaves_of(other), strict=True))
    envs[1].close()


@pytest.mark.parametrize("kind", ["Mask", "MaskInfo", "MaskMany"])
def test_forbidden_actions_have_no_probability_in_acting_and_learning(kind: str) -> None:
    trainer = trainer_of(kind, "a2c")
    rollout = trainer.collector.collect()
    mask = rollout.steps.action_mask
    assert mask is not None
    assert not mask.all()
    assert mask[rollout.steps.terminated].all()
    output, _ = trainer.agent.unroll(rollout.steps, rollout.initial_state)
    assert (output.policy_logits[~mask].exp() == 0).all()
    entropy = losses.distribution_of(rollout, output.policy_logits).entropy()
    assert entropy[~(rollout.steps.terminated | rollout.steps.truncated)[:-1]].max() < 1e-6  # one action is left


class Unmasked(Zoo):
    def __init__(self) -> None:
        super().__init__("MaskInfo")
        self.is_masked = False


def test_an_agent_trained_with_masks_is_not_evaluated_without(tmp_path: Path) -> None:
    agent = trainer_of("MaskInfo", "a2c").agent
    for use in (
        partial(rmc.evaluate, agent, Unmasked, episodes=1),
        partial(rmc.record_video, agent, Unmasked, tmp_path / "video.gif"),
        partial(rmc.record_replay, {"agent": agent}, Unmasked, tmp_path / "replay.html"),
    ):
        with pytest.raises(ValueError, match=r"Unmasked.*expected action masks, with which the agent was trained, got"):
            use()
    assert not list(tmp_path.iterdir())


class Forbidding(Zoo):
    def __init__(self, fault: str) -> None:
        super().__init__("MaskInfo")
        self.fault = fault

    def _mask(self) -> np.ndarray:
        if self.time % LENGTH == 2:
            return np.zeros(4 if self.fault == "all" else 3)
        return np.ones(4)


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("all", "environment 'Forbidding' forbids every action in lane 0, at step 2 of its episode"),
        (
            "shape",
            r"'Forbidding' failed in step\(\): ValueError: infos\['action_mask'\]: expected 4 flags, got float64 \(3,",
        ),
    ],
)
def test_impossible_masks_are_reported_with_the_environment(fault: str, expected: str) -> None:
    collector = trainer_of("MaskInfo").collector
    collector.lanes = Lanes(make_env(Forbidding, LANES, env_kwargs={"fault": fault}), 0, CPU)
    with pytest.raises(EnvError, match=expected):
        collector.collect()


@pytest.mark.slow
def test_a_box_is_filled_uniformly_without_an_agent_and_clipped_with_one() -> None:
    spec = SpaceSpec.of(Zoo("Box"))
    output, _ = UniformPolicy(spec).step(Lanes(make_env(partial(Zoo, "Box"), 2000), 0, CPU).steps, ())
    drawn = spec.to_env(spec.distribution(output.policy_logits).sample(torch.Generator()).numpy())[:, 0]
    np.testing.assert_allclose(np.quantile(drawn, [0.0, 0.5, 1.0], axis=0), [[-2, 0], [-0.5, 5], [1, 10]], atol=0.3)
    edges = spec.to_env(np.float32([[-7, -1], [0, 0.5], [1, 7]]))[:, 0]
    np.testing.assert_allclose(edges, [[-2, 0], [-0.5, 7.5], [1, 10]])


class Reach(gym.Env):
    """One step an episode: the reward is highest where the two numbers equal those of the observation."""

    observation_space = Dict({"target": Box(-1, 1, (2,), np.float32), "which": Discrete(2)})
    action_space = Box(-2, 2, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        target = self.np_random.uniform(-1, 1, 2).astype(np.float32)
        self.obs = {"target": target, "which": int(self.np_random.integers(2))}
        return self.obs, {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict]:
        sign = 1.0 if self.obs["which"] else -1.0
        return self.obs, -float(np.square(action - sign * self.obs["target"]).sum()), True, False, {}


class Pick(gym.Env):
    """One step an episode: the reward is the worth of the chosen action, of which two or more are allowed."""

    observation_space = Dict({"worth": Box(0, 1, (4,), np.float32), "action_mask": MultiBinary(4)})
    action_space = Discrete(4)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        mask = self.np_random.permutation(np.int8([1, 1, 0, self.np_random.integers(2)]))
        worth = np.where(mask, self.np_random.uniform(0, 1, 4), 0.5).astype(np.float32)
        self.obs = {"worth": worth, "action_mask": mask}
        return self.obs, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        assert self.obs["action_mask"][action]
        return self.obs, float(self.obs["worth"][action]), True, False, {}


@pytest.mark.slow
@pytest.mark.parametrize(("env_class", "chance", "goal"), [(Reach, -2.0, -0.2), (Pick, 0.53, 0.66)])
def test_numbers_in_a_box_and_allowed_actions_are_learned(env_class: type, chance: float, goal: float) -> None:
    torch.manual_seed(0)
    env = make_env(env_class, 32)
    agent = rmc.ActorCritic(SpaceSpec.of(env), "none", encoder_sizes=(64, 64))
    collector, optimizer = rmc.Collector(agent, env, 8), torch.optim.Adam(agent.parameters(), 1e-2)
    for _ in range(60):
        rollout = collector.collect()
        output, _ = agent.unroll(rollout.steps, rollout.initial_state)
        loss, _ = losses.a2c(output, rollout, discount=0.9, entropy_cost=0)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
        optimizer.step()
    assert play(UniformPolicy(collector.lanes.spec), env_class, 400, PlaySettings(5, CPU)).returns.mean() < chance
    assert play(agent.eval(), env_class, 400, PlaySettings(5, CPU, deterministic=True)).returns.mean() > goal


@pytest.mark.filterwarnings("error")
def test_observations_may_be_read_only() -> None:
    obs = np.ones((2, 3), np.float32)
    obs.flags.writeable = False
    assert array_spec(Box(-1, 1, (3,), np.float32), ()).encode(obs).tolist() == obs.tolist()
