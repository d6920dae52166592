"""GRPO. The first thing to try where one task can be sampled several times and the result is one number. Not where
groups are mostly constant, or where long episodes need credit inside them.
"""
