"""MemAct (arXiv 2510.12635) addresses tasks longer than the context. Editing the memory is an action of the agent,
which names earlier outputs to remove and writes a summary. After an edit the prompt no longer extends the earlier one,
so a trajectory consists of segments. DCPO standardizes the return in the group and trains each segment under the
context in which it was generated. Here a memory action is the text `prune IDS: SUMMARY`, not a tool call.

`editable.py` is the context that the agent edits, `curating.py` is the program, and `advantage.py` is the estimator.
`segment_sample.py` limits the segments of an update, and `resource_penalty.py` is the price of reaching a limit.
"""
