"""AT-GRPO. Teams in which the acts of a role differ with its turn, in groups large enough that each turn has
peers.
"""
