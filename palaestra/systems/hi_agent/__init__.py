"""Hi-Agent, foresight advantages of subgoals. A planner and an executor on long tasks whose single decisions can
be judged, in an environment that can go back to a state. Where only the end tells what a decision was worth,
there is nothing to compare.
"""
