"""Measurements of speed, learning and reliability; each file of the folders is a program."""

import os

for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")  # here, because numpy reads it when it is imported
