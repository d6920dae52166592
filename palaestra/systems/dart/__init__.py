"""DART (arXiv 2509.23866) trains computer-use agents, whose episodes are long and of very different difficulty.
Environments, rollouts, the store of episodes and the trainer run decoupled. The data are curated: a stored success
joins a group without one, solved tasks get fewer and shorter episodes, only uncertain steps are trained on, and
truncated importance weights correct for older policies. Here the rule for the number of episodes is ours, stored
successes can come from the environment's expert, and `method.yaml` runs environments in threads of one process. The
recipe simulates older policies by a fixed lag. Screenshots are not here.

`adaptive_rollouts.py` is the sampler and `uncertain_steps.py` the mask of steps. The store of successes is
`palaestra/replay/selection.py`.
"""
