"""PPR (arXiv 2509.25598) adds step rewards to the outcome where answers are hard to verify. A judge scores each step by
written principles. With a plain sum a failed episode would earn more the longer it is. ReNorm centers scores and
outcome together, so that no step of a failed episode has a positive reward and no step of a solved one a negative
reward. The return then depends on the number of steps. Token-level PPO uses these rewards, with both discounts 1, as is
usual for search agents, because the paper names none. A model that writes principles and judges is not here.

`renorm.py` joins scores and outcome, `noisy_judge.py` makes the environment's true scores wrong with a chosen
probability, and `advantage.py` is the estimator.
"""
