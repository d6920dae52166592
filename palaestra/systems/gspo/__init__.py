"""GSPO, group sequence policy optimization. Long responses and several updates from one rollout, in particular
with mixtures of experts, whose token ratios are noisy. The range must fit the length; with one token a response
it is PPO's.
"""
