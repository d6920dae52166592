"""AT-GRPO (arXiv 2510.11062) applies group-relative advantages to teams. Acts of different roles, and acts of one role
at different turns, answer different prompts, so a mean over all of them is not a fair baseline. The method compares an
act only with acts of the same role at the same turn. The authors sample the peers of a turn from one common state. Here
whole episodes are sampled, so peers of later turns may have had different observations. The folder has no code of its
own: the estimator is `dr_mas` in `palaestra/parts/estimators.py` with peers that agree in group, agent and act, and
`role_mix` in `palaestra/parts/rewards.py` adds the team's reward to a role's own.
"""
