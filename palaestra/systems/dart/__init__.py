"""DART. Long episodes of a fixed set of tasks of very different difficulty, above all where episodes are collected
while the policy changes.
"""
