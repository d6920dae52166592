"""PPO (arXiv 1707.06347) makes several updates on one batch and clips the probability ratio, so that the policy stays
near the one that sampled. Generalized advantage estimation (arXiv 1506.02438) sums temporal differences of a critic's
values. Here the unit of time is a turn with one value by default. The overlay `ppo_token.yaml` takes response tokens as
units, and `ppo_action.yaml` uses one ratio per action, as TWOSOME (arXiv 2401.14151) does, without its normalization
over admissible actions. The folder has no code of its own: the estimator `ppo` is in `palaestra/parts/critics.py`, the
loss `ppo_clip` in `palaestra/parts/losses.py`, and the value loss in `palaestra/parts/regularizers.py`.
"""
