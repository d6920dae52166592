"""CORY, coevolving with the other you. Fine-tuning for a reward that can be gamed, with room for a second copy of
the model. Not where an answer says nothing about how to answer better.
"""
