"""Truncated PPO (arXiv 2506.15050) addresses responses of very different length, where an iteration waits for the
longest one. Each iteration generates a part of every response and updates the policy from it at once; the next
iteration continues the response. EGAE estimates advantages of unfinished responses with the critic's present values;
the critic learns from finished ones only. Here an episode is suspended between two turns, so one long response, the
paper's main case, cannot be cut. There is no public code; the paper gives neither the window nor λ, and whitening is
ours.

`windows.py` is the runner, `egae.py` the estimator, `fresh.py` keeps steps of earlier windows out of the policy loss,
and `counting.py` is an environment.
"""
