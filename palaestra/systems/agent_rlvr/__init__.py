"""Agent-RLVR. Tasks with a verifier that the policy seldom solves, and a teacher who can help without giving the
answer away. Not where guidance does not raise success: then second attempts are spent for nothing.
"""
