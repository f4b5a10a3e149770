if __name__ == "evaluate":
    raise ImportError("this folder is the package rmc_agents.evaluate: install the project and import that instead")
