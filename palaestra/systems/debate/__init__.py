"""Multi-agent debate. Hard questions and weak models, where a wrong debater is more easily persuaded than a right
one. Not where single answers are mostly right: a vote over as many independent answers is better there.
"""
