"""OPRL, later iStar (arXiv 2509.19199), addresses long episodes with one result and no labels of steps. A second model
learns from preferences between the trajectories of a group. Its log-ratio to the behavior policy, summed over the
tokens of a step, is the step's reward. The advantage adds the comparison of results and the comparison of step rewards,
both inside the group. Here the baseline of a step reward is the mean over all steps of the group; the public code takes
first rows only (`baseline_rows: first`). The second model starts as a copy of the policy. Dialogues scored by a model,
such as SOTOPIA, are not here.

`implicit_process.py` trains the second model and gives the step rewards. `advantage.py` is the estimator.
"""
