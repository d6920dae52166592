"""MasHost builds a team for each task, one act at a time; HRPO credits the acts that build it (arXiv 2506.08507)."""
