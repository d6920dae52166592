"""VL-DAC (arXiv 2508.04280) trains vision-language agents that write thoughts before an action. Methods on whole
actions need a tuned weight between thoughts and action, and a critic of single tokens is hard to learn. VL-DAC
separates the two: the critic gives one value per environment step, and ratio and clip are per token. If one ratio of a
step is very large, the clipped term alone counts for the whole step. Here a step truncated by a time limit bootstraps
from the critic's value, where the authors' code gives it advantage 0, and a log-probability that is not finite is an
error. Images are not here: the recipe trains a small language model.

`advantage.py` is the estimator. `ppo_clip_guarded.py` is the loss with the guard.
"""
