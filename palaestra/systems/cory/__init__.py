"""CORY (arXiv 2410.06101) addresses fine-tuning in which the policy moves far from the original model to increase a
reward. The model is duplicated. A pioneer answers the query, an observer answers after reading the pioneer's answer,
and both receive the sum of the two rewards. Every few iterations they exchange roles, so that in the end each can act
alone. Here policies exchange roles and keep their optimizers; the authors exchange parameters and create new
optimizers. The KL coefficient is fixed: the authors' adaptive control of it is not here, and neither are their
sentiment and mathematics data.

`program.py` is the episode with both answers. `role_exchange.py` is the strategy that exchanges the roles.
"""
