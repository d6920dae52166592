"""An agent of smolagents that answers by Python code. Nothing in it knows that the model behind `base_url` learns.

Needs: pip install 'smolagents[openai]'
"""

from smolagents import EMPTY_PROMPT_TEMPLATES, ActionStep, CodeAgent, LogLevel, OpenAIServerModel, TaskStep
from smolagents.monitoring import Timing

# The library's own instructions have 2,400 words, so each task would take a minute. A small model follows an example.
SHORT = "Write Python code between {{code_block_opening_tag}} and {{code_block_closing_tag}} that calls final_answer."
ENDING = {"pre_messages": "Answer the task.", "post_messages": "Now answer this task: {{task}}"}
TEMPLATES = {**EMPTY_PROMPT_TEMPLATES, "system_prompt": SHORT, "final_answer": ENDING}
EXAMPLE = [
    TaskStep(task="Write these words in reverse order: moon, cat, red, tree."),
    ActionStep(
        step_number=1,
        timing=Timing(start_time=0.0, end_time=0.0),
        model_output='<code>\nfinal_answer("tree, red, cat, moon")\n</code>',
    ),
]


def solve(prompt, base_url, api_key, model):
    """The answer to a task. If the code of the first step has a fault, the agent tells it and asks once more."""
    served = OpenAIServerModel(model_id=model, api_base=base_url, api_key=api_key)
    agent = CodeAgent(tools=[], model=served, prompt_templates=TEMPLATES, max_steps=2, verbosity_level=LogLevel.OFF)
    agent.memory.steps = list(EXAMPLE)
    return str(agent.run(prompt, reset=False))
