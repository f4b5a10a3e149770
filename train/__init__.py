if __name__ == "train":
    raise ImportError("this folder is the package rmc_agents.train: install the project and import that instead")
