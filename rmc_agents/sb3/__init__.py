"""The cores in Stable-Baselines3, and environments converted in both directions.

    from sb3_contrib import RecurrentPPO
    from rmc_agents.sb3 import make_sb3_env

    model = RecurrentPPO("RmcPolicy", make_sb3_env("minipacman", num_envs=64))

Importing this package registers "RmcPolicy" with RecurrentPPO.
"""

try:
    from sb3_contrib import RecurrentPPO
except ImportError as error:
    raise ImportError("rmc_agents.sb3 needs Stable-Baselines3: pip install 'rmc-agents[sb3]'") from error

from .lanes import from_sb3
from .policy import RmcPolicy, copy_lstm_policy
from .vec_env import EngineVecEnv, make_sb3_env, to_sb3

__all__ = ["EngineVecEnv", "RmcPolicy", "copy_lstm_policy", "from_sb3", "make_sb3_env", "to_sb3"]

RecurrentPPO.policy_aliases["RmcPolicy"] = RmcPolicy
