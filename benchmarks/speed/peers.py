"""Complete training compared with other libraries: frames/s on one CPU thread, in turn, ratios within a round.

    python -m benchmarks.speed.peers --sb3-python sb3/bin/python --puffer-python puffer/bin/python [--json FILE]

A peer without its Python is left out. Each has its own virtual environment, made with Python 3.11 and gcc:

    python3.11 -m venv sb3
    sb3/bin/pip install torch==2.13.0 sb3-contrib==2.9.2 gymnasium==1.4.0 numba
    sb3/bin/pip install --no-deps .

    python3.11 -m venv puffer
    puffer/bin/pip install torch==2.13.0 "numpy<2" "setuptools<81" wheel psutil rich rich_argparse pyro-ppl
    puffer/bin/pip install gym==0.23 gymnasium==0.29.1
    puffer/bin/pip install --no-deps heavyball==1.7.2 opt_einsum
    tar xf pufferlib-3.0.0.tar.gz  # its source archive, from the Python Package Index
    (cd pufferlib-3.0.0 && find pufferlib/ocean -name binding.c ! -path "*/pacman/*" -delete &&
        mkdir raylib-5.5_webassembly box2d-web box2d-linux-amd64 &&
        PATH=/usr/bin:/bin ../puffer/bin/pip install --no-deps --no-build-isolation .)

This compiles only PufferLib's Pac-Man. The empty folders keep its setup.py from downloading what only other games and
the browser need. The short PATH hides a CUDA compiler. Later versions of heavyball lack the optimizer that it uses.

Games differ: sb3-contrib plays our Mini PacMan through the 5x5 window (75 numbers), PufferLib its own Pac-Man in C (291
numbers). So does the work per frame: parameters are in the table; PufferLib resets the memory at the start of a
rollout, not of an episode; sb3-contrib's shared LSTM learns from the policy's loss alone. Frames are transitions to
learn from: the steps that only reset an episode do not count.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

MINIPACMAN = "rmc_agents.envs:MiniPacman-v0"
PACKAGES = ["torch", "numpy", "gymnasium", "rmc-agents", "sb3-contrib", "stable-baselines3", "pufferlib", "heavyball"]

# The fastest of a search over lanes, rollout lengths and batches, each a whole rollout in one pass. Of an LSTM of 256,
# RecurrentPPO's default, and one of 128, the smaller, as in the other LSTMs here.
SB3_BEST = {
    "num_envs": 1024,
    "n_steps": 16,
    "batch_size": 1024 * 16,
    "n_epochs": 1,
    "policy_kwargs": {"shared_lstm": True, "enable_critic_lstm": False, "lstm_hidden_size": 128},
}
# Once from each frame, with Adam; the default, PPO with Muon, also learns once from each.
OURS = {"algo": "a2c", "optimizer": "adam"}
# The contestants: kind and settings. The encoder of lstm-128 brings it to PufferLib's number of parameters.
CONTESTANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "default": ("ours", {}),
    "rmc-4x64": ("ours", {**OURS, "num_envs": 64}),
    "rmc-4x128": ("ours", {**OURS, "core": "rmc", "mem_slots": 4, "num_heads": 4, "head_size": 32, "num_envs": 256}),
    "lstm-128": ("ours", {**OURS, "core": "lstm", "hidden_size": 128, "encoder_sizes": [192, 128], "num_envs": 512}),
    "sb3-defaults": ("sb3", {"num_envs": 8}),
    "sb3-best": ("sb3", SB3_BEST),
    "sb3-best-lanes": ("sb3", {**SB3_BEST, "compiled_lanes": True}),
    "puffer": ("puffer", {"num_envs": 512, "minibatch_size": 8192}),
}


def prepare_ours(settings: dict[str, Any]) -> tuple[Callable[[], int], Any]:
    """An update, which returns its frames, of rmc-train, and the network."""
    import torch

    from rmc_agents.config import Config
    from rmc_agents.train.on_policy import OnPolicy

    trainer = OnPolicy(Config().updated(settings, "benchmark"), torch.device("cpu"))

    def update() -> int:
        before = trainer.frames
        trainer.update()
        return trainer.frames - before - len(trainer.lanes.take_episodes())  # an episode's end costs a step of reset

    return update, trainer.agent


def prepare_sb3(settings: dict[str, Any]) -> tuple[Callable[[], int], Any]:
    """The same of sb3-contrib's RecurrentPPO."""
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.env_util import make_vec_env

    settings = dict(settings)
    num_envs, compiled_lanes = settings.pop("num_envs"), settings.pop("compiled_lanes", False)
    env = make_compiled_lanes(num_envs) if compiled_lanes else make_vec_env(MINIPACMAN, n_envs=num_envs)
    model = RecurrentPPO("MlpLstmPolicy", env, device="cpu", **settings)

    def update() -> int:
        before = model.num_timesteps
        model.learn(model.n_steps * num_envs, reset_num_timesteps=False)
        return model.num_timesteps - before

    return update, model.policy


def make_compiled_lanes(num_envs: int) -> Any:
    """All lanes as one environment of Stable-Baselines3, which otherwise steps them one by one in Python.

    That loop is about half of RecurrentPPO's time at its best settings; without it, only the trainers are compared.
    """
    import gymnasium as gym
    import numpy as np
    from stable_baselines3.common.vec_env import VecEnv

    class CompiledLanes(VecEnv):
        def __init__(self) -> None:
            self.lanes = gym.make_vec(MINIPACMAN, num_envs=num_envs, autoreset_mode="SameStep")
            super().__init__(num_envs, self.lanes.single_observation_space, self.lanes.single_action_space)

        def reset(self) -> Any:
            return self.lanes.reset()[0]

        def step_async(self, actions: Any) -> None:
            self.actions = actions

        def step_wait(self) -> Any:
            obs, reward, terminated, truncated, info = self.lanes.step(self.actions)
            infos: list[dict[str, Any]] = [{} for _ in range(num_envs)]
            for lane in np.flatnonzero(truncated & ~terminated):
                infos[lane] = {"TimeLimit.truncated": True, "terminal_observation": info["final_obs"][lane]}
            return obs, reward, terminated | truncated, infos

        def nothing(self, *_: Any) -> list[None]:
            return [None] * num_envs

        get_attr = set_attr = env_method = env_is_wrapped = close = nothing

    return CompiledLanes()


def prepare_puffer(settings: dict[str, Any]) -> tuple[Callable[[], int], Any]:
    """The same of PufferLib's trainer, with its own configuration of Pac-Man except for the settings given."""
    from pufferlib import pufferl

    settings, sys.argv = dict(settings), sys.argv[:1]  # load_config reads the command line
    config = pufferl.load_config("puffer_pacman")
    config["vec"] = {"backend": "Serial", "num_envs": 1}  # one process, which steps all lanes in C
    config["env"]["num_envs"] = settings.pop("num_envs")
    config["train"] |= {"device": "cpu", "env": "puffer_pacman", **settings}
    vecenv = pufferl.load_env("puffer_pacman", config)
    policy = pufferl.load_policy(config, vecenv)
    trainer = pufferl.PuffeRL(config["train"], vecenv, policy)
    trainer.utilization.stop()  # the dashboard's thread, which would outlive the measurement

    def update() -> int:
        before = trainer.global_step
        trainer.evaluate()
        trainer.train()
        return trainer.global_step - before

    return update, policy


PREPARE = {"ours": prepare_ours, "sb3": prepare_sb3, "puffer": prepare_puffer}


def contend(name: str, seconds: float) -> dict[str, Any]:
    """Measures one contestant for at least this many seconds of whole updates, after two to warm up."""
    import torch

    torch.set_num_threads(1)
    kind, settings = CONTESTANTS[name]
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):  # PufferLib draws a dashboard
        update, network = PREPARE[kind](settings)
        for _ in range(2):
            update()
        frames, elapsed, began = 0, 0.0, time.perf_counter()
        while elapsed < seconds:
            frames += update()
            elapsed = time.perf_counter() - began
    installed = {distribution.name.lower().replace("_", "-") for distribution in metadata.distributions()}
    return {
        "contestant": name,
        "frames": frames,
        "seconds": elapsed,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "settings": settings,
        "versions": {package: metadata.version(package) for package in PACKAGES if package in installed},
    }


def run(name: str, python: str, seconds: float) -> dict[str, Any]:
    """`contend` in a separate process, with the given Python, in an empty folder, since PufferLib leaves files
    behind."""
    command = [python, str(Path(__file__).resolve()), "--contestant", name, "--seconds", str(seconds)]
    env = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def rates(results: list[dict[str, Any]], name: str) -> list[float]:
    """Frames per second of a contestant, round by round."""
    return [result["frames"] / result["seconds"] for result in results if result["contestant"] == name]


def print_tables(results: list[dict[str, Any]], absent: dict[str, str]) -> None:
    """Frames per second of all contestants, and our speed relative to each peer."""
    from rich.console import Console
    from rich.table import Table

    speeds = Table("contestant", "parameters", "lanes", "frames/s", "slowest-fastest", title="training on one thread")
    last = {result["contestant"]: result for result in results}
    for name, (_, settings) in CONTESTANTS.items():
        if name in absent:
            speeds.add_row(name, "", "", f"left out: no {absent[name]}", "")
            continue
        rate, lanes = rates(results, name), settings.get("num_envs", "default")
        spread = f"{min(rate):,.0f}-{max(rate):,.0f}"
        speeds.add_row(name, f"{last[name]['parameters']:,}", str(lanes), f"{statistics.median(rate):,.0f}", spread)
    own = [name for name, (kind, _) in CONTESTANTS.items() if kind == "ours"]
    ratios = Table("times as fast as", *own, title="ratios within a round: median (lowest-highest)")
    for peer in last:
        if peer not in own:
            pairs = [zip(rates(results, name), rates(results, peer), strict=True) for name in own]
            columns = [[a / b for a, b in pair] for pair in pairs]
            ratios.add_row(peer, *(f"{statistics.median(c):.3g} ({min(c):.3g}-{max(c):.3g})" for c in columns))
    Console().print(speeds, *([ratios] if ratios.row_count else []))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sb3-python", help="Python of the environment with sb3-contrib and this project")
    parser.add_argument("--puffer-python", help="Python of the environment with PufferLib")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0, help="each, in every round")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--contestant", choices=CONTESTANTS, help="measure this one, here and now, and print one line")
    arguments = parser.parse_args()
    if arguments.contestant:
        print(json.dumps(contend(arguments.contestant, arguments.seconds)), flush=True)
        return
    given = {"ours": sys.executable, "sb3": arguments.sb3_python, "puffer": arguments.puffer_python}
    pythons = {kind: os.path.abspath(python) for kind, python in given.items() if python}  # a link is a venv's identity
    absent = {name: f"--{kind}-python" for name, (kind, _) in CONTESTANTS.items() if kind not in pythons}
    results = []
    for round_number in range(1, arguments.rounds + 1):
        for name, (kind, _) in CONTESTANTS.items():
            if name not in absent:
                result = run(name, pythons[kind], arguments.seconds)
                results.append({"round": round_number, **result})
                speed = result["frames"] / result["seconds"]
                print(f"round {round_number}: {name} {speed:,.0f} frames/s", file=sys.stderr, flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps(results, indent=2) + "\n")
    print_tables(results, absent)


if __name__ == "__main__":
    main()
