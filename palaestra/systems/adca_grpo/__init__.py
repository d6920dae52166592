"""AgentEvolver, self-attributing (ADCA-GRPO). When a judge can say which steps were good, and is right more often
than not.
"""
