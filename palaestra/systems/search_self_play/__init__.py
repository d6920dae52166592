"""Search Self-Play. Search with a corpus and without questions: answers are easy to draw, and whether a question
leads to one can be checked from what its author has read. Not where nobody can tell a hard question from one
without an answer.
"""
