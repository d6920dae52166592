"""DAPO, decoupled clip and dynamic sampling policy optimization. Many tasks that are always or never solved,
entropy that falls early, responses of widely differing length. Each of its four switches stands alone. Groups
that are thrown away cost generation: compare at equal tokens.
"""
