"""RLOO (arXiv 2402.14740) shows that fine-tuning a pretrained language model needs neither PPO's critic nor its clip.
The advantage of a response is its return minus the mean return of the other responses to the same prompt. Leaving out
its own return keeps the gradient unbiased, and no deviation scales it. A whole response is one action: its token losses
are summed. Here the loss is PPO's clipped surrogate, whose gradient is that of REINFORCE as long as a batch is used for
one update. The folder has no code of its own: the estimator `rloo` is in `palaestra/parts/estimators.py` and the loss
`ppo_clip` is in `palaestra/parts/losses.py`.
"""
