"""IMPALA: parallel actors, and a learner with V-trace."""
