"""An environment as users write them, with typical faults; importing this registers one for each fault."""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete

FAILS_AT = 12
EVALUATION_SEED = 1_000_000
FAULTS = ("none", "constructor", "reset", "step", "close", "render", "no seed", "empty", "shape", "reward", "infos")
FAULTS += (
    "exit",
    "speechless",
    "within numpy",
    "nan reward",
    "infinite observation",
    "junk in infos",
    "endless",
    "evaluation",
    "scalar",
)


class Speechless(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Homemade(gym.Env):
    """Episodes of three steps with reward 1 each; takes a render_mode only if it can draw."""

    action_space = Discrete(2)

    def __init__(self, fault: str) -> None:
        self.fault, self.steps, self.time = fault, 0, 0
        shape = {"empty": (0,), "scalar": ()}.get(fault, (2,))
        self.observation_space = Box(-1, 1, shape, np.float32)
        if fault == "constructor":
            raise OSError("no room for another")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        if seed is not None:
            self.is_odd = bool(seed % 2)
        self.time = 0
        self._fail("evaluation" if EVALUATION_SEED <= (seed or 0) < 2**31 else "reset")
        return self.observation_space.sample(), {}

    def step(self, action: int) -> tuple[Any, Any, bool, bool, Any]:
        self.steps, self.time = self.steps + 1, self.time + 1
        self._fail("step")
        if self.fault == "exit" and self.steps == FAILS_AT:
            sys.exit(3)
        if self.fault == "speechless" and self.steps == FAILS_AT:
            raise Speechless
        if self.fault == "within numpy" and self.steps == FAILS_AT:
            np.reshape(np.zeros(3), (2, 2))
        obs, reward, info = np.zeros(2, np.float32), 1.0, {}
        if self.fault == "junk in infos":
            info = {"level": "two", "power": [[1], [2, 3]], "is_success": float("nan"), "winner": None, "note": "kept"}
        faulty = {"shape": (np.zeros(3), 1.0, {}), "reward": (obs, None, {}), "infos": (obs, 1.0, None)}
        if self.is_odd and self.steps == FAILS_AT:
            faulty |= {"nan reward": (obs, np.nan, {}), "infinite observation": (np.float32([0, -np.inf]), 1.0, {})}
        obs, reward, info = faulty.get(self.fault, (obs, reward, info))
        return obs, reward, self.time == 3 and self.fault != "endless", False, info

    def render(self) -> Any:
        self._fail("render")

    def close(self) -> None:
        self._fail("close")

    def _fail(self, where: str) -> None:
        if where == self.fault and (where != "step" or self.steps == FAILS_AT):
            raise RuntimeError(f"lost\nin {where}")


class Drawn(Homemade):
    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, fault: str, render_mode: str | None = None) -> None:
        super().__init__(fault)
        self.render_mode = render_mode


class Seedless(Homemade):
    def reset(self) -> tuple[np.ndarray, dict]:  # type: ignore[override]
        return super().reset()


def name_of(fault: str) -> str:
    """The environment's id, with the module in front."""
    return f"helpers.homemade:Homemade-{fault.title().replace(' ', '')}-v0"


for each in FAULTS:
    kind = {"render": Drawn, "no seed": Seedless}.get(each, Homemade)
    if (env_id := name_of(each).partition(":")[2]) not in gym.registry:
        gym.register(env_id, kind, kwargs={"fault": each})
