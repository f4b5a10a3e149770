"""Evaluation of agents: statistics over whole episodes, memory ablations, comparisons, videos.

The package can be called as a function, `rmc_agents.evaluate(agent, env, episodes=100)`;
help("rmc_agents.evaluate.scoring.evaluate") explains it.
"""

if __name__ == "evaluate":
    raise ImportError("this folder is the package rmc_agents.evaluate: install the project and import that instead")

import logging
import sys

from rmc_agents.lazy import CallablePackage

FUNCTION = "scoring"
sys.modules[__name__].__class__ = CallablePackage

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # it warns while it builds its cache
