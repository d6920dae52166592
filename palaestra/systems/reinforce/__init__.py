"""REINFORCE with a mean baseline (Williams 1992). The plainest baseline, to see what anything else adds."""
