"""CRAFT-GUI. Agents on screens, where tasks differ in length and single actions can be checked against references.
Not without references, and not where another way than theirs is as good.
"""
