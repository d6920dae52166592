"""An agent of smolagents that answers by Python code. Nothing in it knows that the model behind `base_url` learns.

Needs: pip install 'smolagents[openai]', and bubblewrap, since the code is the model's and runs in a sandbox.
"""

import functools
import json

from smolagents import EMPTY_PROMPT_TEMPLATES, ActionStep, CodeAgent, LogLevel, OpenAIServerModel, TaskStep
from smolagents.local_python_executor import CodeOutput, PythonExecutor
from smolagents.monitoring import Timing

from palaestra.tools.sandbox import PythonPool

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
MARK = "final answer: "
PROGRAM = """
import json

def final_answer(answer):
    print("\\n{mark}" + json.dumps(str(answer)), flush=True)
    raise SystemExit

exec(compile({code!r}, "code", "exec"), {{"final_answer": final_answer}})
"""


@functools.cache
def pool():
    """The interpreters, which all episodes of this process share. They refuse to start where nothing isolates."""
    return PythonPool(workers=1)


class Sandboxed(PythonExecutor):
    """Runs the code of an agent in a sandbox. The executor of the library would run it in this process."""

    def send_tools(self, tools):
        """The only tool is `final_answer`, which the program defines."""

    def send_variables(self, variables):
        """There are none."""

    def __call__(self, code_action):
        """What the code printed, and its final answer. Raises: RuntimeError, with the last line of a fault."""
        done = pool().run(PROGRAM.format(mark=MARK, code=code_action), timeout_s=5, memory_mb=128)
        logs, found, answer = done.out.rpartition(f"\n{MARK}")
        if found:
            return CodeOutput(output=json.loads(answer), logs=logs, is_final_answer=True)
        if done.rc or done.timed_out:
            raise RuntimeError((done.err.strip() or "The code took too long.").splitlines()[-1])
        return CodeOutput(output=None, logs=done.out, is_final_answer=False)


def solve(prompt, base_url, api_key, model):
    """The answer to a task. If the code of the first step has a fault, the agent tells it and asks once more."""
    served = OpenAIServerModel(model_id=model, api_base=base_url, api_key=api_key)
    agent = CodeAgent(
        tools=[],
        model=served,
        executor=Sandboxed(),
        prompt_templates=TEMPLATES,
        max_steps=2,
        verbosity_level=LogLevel.OFF,
    )
    agent.memory.steps = list(EXAMPLE)
    return str(agent.run(prompt, reset=False))
