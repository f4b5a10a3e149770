if __name__ == "configs":
    raise ImportError("this folder is the package rmc_agents.configs: install the project and import that instead")
