"""MasHost (arXiv 2506.08507) lets a policy build a team for each query by adding agents and connections one after the
other. The result alone does not punish useless agents. HRPO adds a score of each building action to the group-relative
advantage of the result; the score is not compared with others. There is no public code: the sum follows the abstract,
and its weight is ours. Here a finished team is executed by fixed rules in a small game. No agents run, no messages are
exchanged, and no language model builds.

`advantage.py` is the estimator, `teambuilding.py` is the environment, and `teambuilding_graph.py` holds its rules for
teams and prices.
"""
