"""T-PPO, truncated PPO with EGAE. Responses of widely differing length, where an iteration would wait for the
longest one. Not without a critic that is worth something: until it is warm, unfinished responses teach nothing.
"""
