"""Kimi K1.5 and K2 (arXiv 2501.12599, 2507.20534) make several updates per batch without a clip. By least squares, the
log-ratio of a trajectory to the old policy, times a temperature, approaches the return minus the group's mean. The pull
back to the old policy grows with the distance. A token budget makes long responses cost reward, and the sampling
temperature falls during the run. The self-critique rubric reward, the synthesis of tools and tasks, and the PTX loss of
the paper are not here.

`squared_objective.py` is the loss, `token_budget.py` the length penalty, and `cooling.py` the falling temperature.
`muon_clip.py` is the optimizer of the variant `muon_clip.yaml`: Muon with a bound on attention logits, which
`attention.py` measures.
"""
