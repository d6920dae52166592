"""SPA-RL (arXiv 2505.20732) addresses long episodes with one outcome at the end. An estimator learns to predict the
outcome as a sum of contributions of the steps. Each contribution, plus a bonus for an executable action, is the reward
of its step for PPO. Here the estimator is a small recurrent network, the authors' a language model. The bonus is 0.02
and not the published 0.5, with which many aimless steps earn more than the goal. The KL term in the token reward is not
here.

`progress.py` fits the estimator and gives the rewards, `encoders.py` is the estimator's network, and `equal_split.py`
is a comparison that gives all steps the same share (overlay `equal_split.yaml`).
"""
