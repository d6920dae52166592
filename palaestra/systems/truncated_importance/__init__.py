"""The engine that samples and the trainer that learns can give a token slightly different probabilities, because of
precision, kernels or older weights, and this biases the gradient. Truncated importance sampling multiplies the loss
of each token with the trainer's probability before the update divided by the sampler's, cut at an upper bound. Where
both agree it changes nothing. It is described in the public documentation of agent trainers of 2025; decoupled PPO
(arXiv 2505.24298) uses the same weight for older policies. Here the ratio can also be that of a whole sequence, and
can mask instead of being cut. The folder has no code of its own: the weight is in `palaestra/parts/importance.py`.
"""
