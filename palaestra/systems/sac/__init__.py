"""SAC (arXiv 1801.01290, 1812.05905) learns control with continuous actions from few environment steps. The objective
of its stochastic actor is the reward plus the entropy of its actions, so that it explores as long as actions are worth
about the same. Two critics learn from a replay buffer of everything that was played, and the smaller of both values
counts, since the larger is usually too high. The weight of the entropy, alpha, is learned so that the entropy stays
near a target. Here an iteration first plays whole episodes and then makes one update for each of their acts; the
authors' code makes an update after each act. Actions before the first update come from the untrained actor, not from a
uniform distribution.

`policy.py` is the actor, `learner.py` the critics and the updates.
"""
