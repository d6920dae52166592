"""M-GRPO. A main agent that calls sub-agents a varying number of times, each with weights of its own."""
