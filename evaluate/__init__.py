import logging

if __name__ == "evaluate":
    raise ImportError("this folder is the package rmc_agents.evaluate: install the project and import that instead")

logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)  # else it warns while it builds its cache
