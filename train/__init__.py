"""Training: rmc-train, rmc-sweep and rmc-bench.

The package can be called as a function, `rmc_agents.train(config)`; help("rmc_agents.train.run.train") explains it.
"""

if __name__ == "train":
    raise ImportError("this folder is the package rmc_agents.train: install the project and import that instead")

import sys

from rmc_agents.lazy import CallablePackage

FUNCTION = "run"
sys.modules[__name__].__class__ = CallablePackage
