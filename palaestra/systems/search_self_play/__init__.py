"""Search Self-Play (arXiv 2510.18821) trains a search agent without given questions. One model has two roles. The
proposer gets an answer, searches and writes a question; the solver tries to answer it several times. The proposer's
reward grows with the difficulty of its question, the solver's reward is for right answers. A question counts only if
what the proposer has read leads to the answer. Here the corpus is a small graph of facts, and rules do what a search
engine and judging models do in the paper. Each answer gets two questions; the authors' gets one.

`inquiry.py` is the environment, `proposer.py` is the program, `question_pool.py` replaces invalid questions by earlier
ones, and `question_difficulty.py` is the proposer's reward.
"""
