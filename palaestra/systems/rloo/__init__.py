"""RLOO. Small groups, or wherever dividing by a deviation would blow up tiny differences: it is unbiased and has
no scale.
"""
