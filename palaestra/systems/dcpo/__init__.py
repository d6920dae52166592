"""MemAct / DCPO. Tasks longer than the context: editing the memory is an action, and every segment is trained
under the memory it was written with.
"""
