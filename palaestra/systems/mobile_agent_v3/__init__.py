"""Mobile-Agent-v3 (trajectory-aware relative policy optimization). Tasks that come again and are solved rarely:
once solved, a task always gives a signal. Not where every task is met once.
"""
