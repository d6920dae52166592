"""In multi-agent debate several models answer a question, read all answers of the round before, and answer again; the
majority of the last round decides. The paper (arXiv 2505.22960) asks when this is better than a vote over as many
independent answers. One round of debate is that vote, and one debater alone is self-refinement. The recipe here also
trains the debaters; each one's reward is the team's return. `program.py` is the program; the estimator `dr_mas` is in
`palaestra/parts/estimators.py`. The paper's comparison over difficulty and model size and its safety experiments are
not here.
"""
