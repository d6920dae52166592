"""Behavior cloning trains a policy to repeat an expert's actions by maximum likelihood: the loss of each demonstrated
token is its negative log-probability. Here it is the warm start of other recipes, and it has no overlay of its own;
`palaestra run behavior_cloning` plays a clone beside a policy that has imitated nobody. If a recipe has a section
`warm_start`, the environment's expert plays episodes through the policy's own context, and the policy is fitted to
them before the first iteration. The folder has no code: the warm start is `palaestra/training/warm_start.py`, and
the same loss as a part is `behavior_cloning` in `palaestra/parts/losses.py`. The folder `filtered_cloning` imitates
the policy's own successful episodes instead.
"""
