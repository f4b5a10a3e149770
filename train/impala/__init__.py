"""IMPALA: actors that play, a learner that corrects by V-trace."""
