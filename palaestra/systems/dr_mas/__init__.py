"""Dr. MAS. Teams whose roles have different reward distributions: one baseline for all lets the gradients of some
roles spike.
"""
