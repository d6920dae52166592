"""HAPO, heterogeneous adaptive policy optimization. Long responses in which a few tokens decide and most follow.
Each of its parts can be switched off by its strength; with all of them off it is DAPO. Not with averages inside
a response: its advantages balance over tokens.
"""
