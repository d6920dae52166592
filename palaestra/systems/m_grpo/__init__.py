"""M-GRPO (arXiv 2511.13288) trains a main agent and its sub-agents, each with weights of its own. The number of calls
differs between rollouts, so calls cannot be paired. Main rollouts are compared with each other, and the calls of a
sub-agent with all its calls in the group. The default `align: weight` weighs every rollout the same and is ours. The
published form, `duplicate`, repeats or drops calls; here the repetitions are first spread evenly. The deep-research
tools, the two-stage curriculum and a model that judges calls are not here.

`advantage.py` is the estimator, `calls.py` finds the calls in a table, `hierarchical.py` is the reward of main agent
and calls, and `sub_agents.py` is the team program.
"""
