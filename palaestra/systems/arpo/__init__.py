"""ARPO (arXiv 2507.19849) addresses agents whose tool calls are expensive and who become uncertain right after a
tool's answer. Some trajectories of a group start at the task. Others branch off after an answer, with a probability
that grows with the policy's entropy, and the shared steps are played once. AEPO (arXiv 2510.14545), the overlay
`aepo.yaml`, limits repeated branching and weights tokens by entropy. Here entropy runs over all tokens and not over
the ten likeliest, AEPO's probe is one of the group's trajectories, and its entropy factor is never negative.

`branching.py` is the strategy, and `tree.py` grows a group. `shared_prefix.py` sets the advantage of shared steps,
`entropy_aware.py` weights tokens by entropy, and `ppo_clip_kept.py` is AEPO's loss.
"""
