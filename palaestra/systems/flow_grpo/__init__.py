"""AgentFlow / Flow-GRPO. A team in which one module is trained and the others are fixed tools."""
