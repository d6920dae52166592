"""REINFORCE++ (arXiv 2501.03262) removes PPO's critic without comparing inside groups, whose mean and deviation are
noisy for few samples. The reward to go of all response tokens, with a KL penalty per token if wanted, is standardized
over the whole batch, and PPO's clipped loss follows. It works with one trajectory per task. The variant
`reinforce_plus_plus_baseline.yaml` subtracts the group's mean first and still divides by the deviation of the batch.
The KL coefficient is 0 here by default. Public versions differ; this one carries the return from step to step over
the observations between them. The folder has no code of its own: both estimators are in
`palaestra/parts/estimators.py`, and `ppo_clip` is in `palaestra/parts/losses.py`.
"""
