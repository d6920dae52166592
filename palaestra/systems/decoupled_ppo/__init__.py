"""Decoupled PPO for asynchronous training (AReaL). When episodes are played while the policy learns, so that what
is learned from is some updates old. With nothing old it is PPO.
"""
