"""CORY (arXiv 2410.06101) addresses fine-tuning in which the policy moves far from the original model to increase a
reward. The model is duplicated. A pioneer answers the query, an observer answers after reading the pioneer's answer,
and both receive the sum of the two rewards. Every few iterations they exchange roles, so that in the end each can act
alone: the policies exchange their weights and get new optimizers, as in the authors' code. Each role has a KL
coefficient that adapts. Here the KL is that of the sampled tokens and not of the whole vocabulary, and an exchange does
not reset the coefficients. Each of the two copies is cloned from an expert, instead of being loaded from one model. The
authors' sentiment and mathematics data are not here.

`program.py` is the episode with both answers, `role_exchange.py` the learner that exchanges the roles, and
`adaptive_kl.py` gives the advantages.
"""
