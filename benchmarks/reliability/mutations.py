"""Breaks the source in one place at a time and runs the tests that should notice.

    python benchmarks/reliability/mutations.py [WORD ...]      # only mutations with one of these words in their names

Works on a copy in a temporary folder. First the tests have to pass as the source is. Exit status 1: some mutation was
missed, broke more than it should (nothing could be collected), or its place is no longer in the source.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent.parent
PARTS = ("envs", "train", "evaluate", "configs")
"""Folders at the top of the repository that are subpackages of rmc_agents."""
PASSED, FAILED = 0, 1  # pytest's exit status


class Mutation(NamedTuple):
    """One fault."""

    name: str
    file: str
    old: str  # once in the file
    new: str
    tests: str  # pytest's arguments: a file, and which of its tests


KERNELS, HANDED_OUT = "tests/kernels/test_kernels.py", "tests/kernels/test_handed_out.py"
CORES, LOSSES, AGENT = "tests/cores/test_cores.py", "tests/test_losses.py", "tests/test_agent.py"
ON_POLICY, OPTIMIZERS = "tests/train/test_on_policy.py", "tests/train/test_optimizers.py"
TRAIN, RESUME, CHECKPOINT = "tests/train/test_train.py", "tests/runs/test_resume.py", "tests/runs/test_checkpoint.py"
EVALUATE, ACTORS, SB3 = "tests/evaluate/test_evaluate.py", "tests/train/impala/test_actors.py", "tests/sb3/test_sb3.py"
PARALLEL = "tests/train/test_data_parallel.py"

MUTATIONS = [
    Mutation(
        "cores: no reset before a step",
        "rmc_agents/kernels/reference.py",
        "cell(inputs_t, reset(should_reset_t, initial_state, state))",
        "cell(inputs_t, state)",
        f"{CORES} -k TestReset",
    ),
    Mutation(
        "cores: the memory starts at zero",
        "rmc_agents/cores/rmc.py",
        "torch.eye(mem_slots, slot_size)",
        "torch.zeros(mem_slots, slot_size)",
        f"{CORES} -k identity",
    ),
    Mutation(
        "cores: a gradient passes a reset",
        "rmc_agents/kernels/lstm/fused.py",
        "stop_gradient(self.should_reset[t], _d_cell, d_initial[1].numpy())",
        "pass",
        f"{KERNELS} -k 'gradient_stops and lstm'",
    ),
    Mutation(
        "cores: gradients of any layout",
        "rmc_agents/kernels/tape.py",
        "d_outputs.contiguous(), tuple(d.contiguous() for d in d_final)",
        "d_outputs, tuple(d_final)",
        f"{HANDED_OUT} -k 'any_layout and fused and (gru or lstm)'",
    ),
    Mutation(
        "cores: lstm's final state is a buffer",
        "rmc_agents/kernels/lstm/fused.py",
        "self.cell[-1].clone()",
        "self.cell[-1]",
        f"{HANDED_OUT} -k 'no_memory and fused and lstm'",
    ),
    Mutation(
        "cores: rmc's final state is a buffer",
        "rmc_agents/kernels/rmc/fused.py",
        ".view(self.lanes, -1, self.attended.shape[1]).clone())",
        ".view(self.lanes, -1, self.attended.shape[1]))",
        f"{HANDED_OUT} -k 'no_memory and fused and rmc'",
    ),
    Mutation(
        "losses: truncation ends as termination does",
        "rmc_agents/losses.py",
        "discount_t=discount * (~terminated[1:]).float()",
        "discount_t=discount * (~is_last[1:]).float()",
        f"{ON_POLICY} -k returns_by_definition",
    ),
    Mutation(
        "losses: the trace runs on past a truncation",
        "rmc_agents/losses.py",
        "lambda_t=trace_lambda * (~is_last[1:]).float()",
        "lambda_t=trace_lambda * (~terminated[1:]).float()",
        f"{ON_POLICY} -k returns_by_definition",
    ),
    Mutation(
        "losses: fillers count",
        "rmc_agents/losses.py",
        "valid=~is_first[1:]",
        "valid=torch.ones_like(is_first[1:])",
        f"{ON_POLICY} -k 'filler or returns_by_definition'",
    ),
    Mutation(
        "losses: entropy is lowered",
        "rmc_agents/losses.py",
        "value_cost * value_term - entropy_cost * entropy_term",
        "value_cost * value_term + entropy_cost * entropy_term",
        f"{ON_POLICY} -k returns_by_definition",
    ),
    Mutation(
        "losses: PPO's ratio is always 1",
        "rmc_agents/losses.py",
        "return policy.log_prob(action) - distribution_of(rollout, rollout.policy_logits).log_prob(action)",
        "return policy.log_prob(action) - policy.log_prob(action).detach()",
        f"{ON_POLICY} -k ratio",
    ),
    Mutation(
        "losses: PPO clips whatever the advantage",
        "rmc_agents/losses.py",
        "torch.minimum(ratio * advantage, clipped * advantage)",
        "(clipped * advantage)",
        f"{ON_POLICY} {LOSSES} -k clipped",
    ),
    Mutation(
        "losses: V-trace does not clip",
        "rmc_agents/losses.py",
        "delta = rho.clamp(max=clip_rho)",
        "delta = rho",
        f"{LOSSES} -k vtrace",
    ),
    Mutation(
        "collect: an ended lane does not begin anew after a resume",
        "rmc_agents/collect.py",
        "self._is_last = (self.steps.terminated | self.steps.truncated).cpu().numpy()",
        "pass",
        f"{RESUME} -k a_lane_whose_episode_ended",
    ),
    Mutation(
        "collect: terminated and truncated at once",
        "rmc_agents/collect.py",
        "truncated & ~terminated",
        "truncated",
        f"{ON_POLICY} -k both_ways",
    ),
    Mutation(
        "collect: fillers lengthen episodes",
        "rmc_agents/collect.py",
        "self._lengths += ~is_first",
        "self._lengths += 1",
        f"{AGENT} -k join",
    ),
    Mutation(
        "collect: the state after the rollout instead of before",
        "rmc_agents/collect.py",
        "Rollout(self._steps, self._policy_logits, self._value, initial_state)",
        "Rollout(self._steps, self._policy_logits, self._value, self.state)",
        f"{AGENT} -k join",
    ),
    Mutation(
        "optimizers: the schedule does not reach Muon",
        "train/optimizers.py",
        "for part in self.parts:\n            yield from part.param_groups",
        "for part in self.parts[:1]:\n            yield from part.param_groups",
        OPTIMIZERS,
    ),
    Mutation(
        "optimizers: Muon decays weights", "train/optimizers.py", "weight_decay=0.0", "weight_decay=0.1", OPTIMIZERS
    ),
    Mutation(
        "optimizers: gradients are not clipped",
        "train/learner.py",
        "clip_grad_norm_(self.agent.parameters(), self.train.max_grad_norm)",
        'clip_grad_norm_(self.agent.parameters(), float("inf"))',
        f"{ON_POLICY} -k clipped_before",
    ),
    Mutation(
        "optimizers: PPO's lanes are never shuffled",
        "train/on_policy.py",
        "torch.randperm(num_lanes)",
        "torch.arange(num_lanes)",
        f"{ON_POLICY} -k pass",
    ),
    Mutation(
        "checkpoint: the checksum is not compared",
        "rmc_agents/runs/checkpoint.py",
        'if metadata.get("sha256") != _digest(metadata.get("tree", ""), tensors):',
        "if False:",
        CHECKPOINT + " -k 'not killing'",
    ),
    Mutation(
        "checkpoint: one more than asked for is kept",
        "rmc_agents/runs/checkpoint.py",
        "list(numbered(run_dir, suffix))[keep:]",
        "list(numbered(run_dir, suffix))[keep + 1 :]",
        CHECKPOINT + " -k 'not killing'",
    ),
    Mutation(
        "checkpoint: moments are not restored",
        "train/learner.py",
        'self.optimizer.set_state(state["optimizer"])',
        "pass",
        f"{TRAIN} -k 'uninterrupted and lstm'",
    ),
    Mutation(
        "checkpoint: the draws of minibatches are not restored",
        "train/learner.py",
        'torch.set_rng_state(state["torch_rng"])',
        "pass",
        f"{TRAIN} -k 'uninterrupted and ppo'",
    ),
    Mutation(
        "checkpoint: the folder's lock is never released",
        "rmc_agents/runs/folder.py",
        '"""Let others have the folder."""\n        self._lock.release()',
        '"""Let others have the folder."""',
        f"{RESUME} -k folder_is_free",
    ),
    Mutation(
        "evaluation: batches have the same seeds",
        "evaluate/episodes.py",
        "seed + first, device",
        "seed, device",
        f"{EVALUATE} -k own_seed",
    ),
    Mutation(
        "evaluation: later episodes overwrite level and success",
        "evaluate/episodes.py",
        "facts.setdefault(key, np.zeros(lanes.num_lanes))[ended] = lanes.infos[key][ended]",
        "facts[key] = np.where(steps.terminated.numpy(), lanes.infos[key], facts.get(key, 0.0))",
        f"{EVALUATE} -k own_seed",
    ),
    Mutation(
        "evaluation: on the seeds of training",
        "evaluate/statistics.py",
        "EVALUATION_SEED = 1_000_000",
        "EVALUATION_SEED = 0",
        f"{EVALUATE} -k was_trained_on",
    ),
    Mutation(
        "evaluation: percentiles instead of BCa",
        "evaluate/statistics.py",
        "bootstrap((samples,), np.mean, batch=batch,",
        'bootstrap((samples,), np.mean, method="percentile", batch=batch,',
        f"{EVALUATE} -k skewness",
    ),
    Mutation(
        "evaluation: the band of the mean",
        "evaluate/curves.py",
        "(samples,), interquartile_mean, axis=0",
        "(samples,), np.mean, axis=0",
        f"{EVALUATE} -k band",
    ),
    Mutation(
        "bridge: the core's gain is dropped",
        "rmc_agents/sb3/policy.py",
        "outputs * self.core_gain",
        "outputs",
        f"{SB3} -k times_its_gain",
    ),
    Mutation(
        "distributed: all actors draw the same noise",
        "train/impala/actors.py",
        "np.random.SeedSequence((config.run.seed, number))",
        "np.random.SeedSequence((config.run.seed, 0))",
        f"{ACTORS} -k draw_different",
    ),
    Mutation(
        "distributed: learners' actors have the same numbers",
        "train/impala/actors.py",
        "number = learner * config.actors.actors + index",
        "number = index",
        f"{ACTORS} -k draw_different",
    ),
    Mutation(
        "distributed: gradients are added up",
        "train/distributed.py",
        "vector_to_parameters(flat / size(), gradients)",
        "vector_to_parameters(flat, gradients)",
        f"{PARALLEL} -k mean_gradient",
    ),
]


def main(words: Sequence[str]) -> int:
    """The exit status."""
    chosen = [m for m in MUTATIONS if not words or any(word in m.name for word in words)]
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        make_copy(copy)
        if broken := [tests for tests in dict.fromkeys(m.tests for m in chosen) if run(tests, copy) != PASSED]:
            print("these fail without a mutation:", *broken, sep="\n  ")
            return 1
        outcomes = []
        for mutation in chosen:
            outcomes.append(outcome(mutation, copy))
            print(f"{outcomes[-1]:<14} {mutation.name}", flush=True)
    caught = outcomes.count("caught")
    print(f"{caught} of {len(outcomes)} caught")
    return 0 if caught == len(outcomes) else 1


def make_copy(folder: Path) -> None:
    """The package as it is when installed, in `site`, compiled passes included, and the tests."""
    shutil.copytree(ROOT / "rmc_agents", folder / "site" / "rmc_agents")
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / "site" / "rmc_agents" / part)
    shutil.copytree(ROOT / "tests", folder / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)


def outcome(mutation: Mutation, copy: Path) -> str:
    """What becomes of a mutation: caught, missed, or why that cannot be said."""
    path = copy / "site" / in_package(mutation.file)
    text = path.read_text()
    if text.count(mutation.old) != 1:
        return "not in source"
    path.write_text(text.replace(mutation.old, mutation.new))
    try:
        status = run(mutation.tests, copy)
    finally:
        shutil.copy2(ROOT / mutation.file, path)
    return {PASSED: "MISSED", FAILED: "caught"}.get(status, f"pytest: {status}")


def in_package(file: str) -> str:
    """Where a file of the repository is in the installed package."""
    return file if file.startswith("rmc_agents/") else f"rmc_agents/{file}"


def run(tests: str, copy: Path) -> int:
    """The exit status of pytest on the copy, which stops at the first failure."""
    environment = os.environ | {"PYTHONPATH": str(copy / "site"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *shlex.split(tests)]
    return subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
