"""Prioritized fictitious self-play (AlphaStar). Games against others, where a policy that only meets itself runs
in circles or forgets how to beat what it once was. Not where all get the same: then no opponent is harder than
another.
"""
