"""AReaL (arXiv 2505.24298) addresses asynchronous training: episodes are generated while the policy learns, so they are
some updates old when they are used. In PPO one policy has two functions: it sampled the tokens, and it is the center of
the clip. Decoupled PPO separates the two. The clip lies around a recent proximal policy, whose log-probabilities are
computed when a batch is taken, and a constant weight corrects for the policy that sampled. Here this weight has an
upper bound of 5, which is ours. The folder has no code of its own: the weight is in `palaestra/parts/importance.py`,
the loss in `palaestra/parts/losses.py`, and the asynchronous collection in `palaestra/training/async_collector.py`.
"""
