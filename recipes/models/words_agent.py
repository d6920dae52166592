"""An agent for any server that speaks OpenAI's protocol. Nothing in it knows that the model at `base_url` learns."""

from openai import OpenAI

CLIENT = OpenAI(base_url="http://127.0.0.1", api_key="none")  # one pool of connections for all tasks
EXAMPLE = [
    {
        "role": "user",
        "content": "Write these words in reverse order: moon, cat, red, tree. Answer with the words only.",
    },
    {"role": "assistant", "content": "tree, red, cat, moon"},
]


def solve(prompt, base_url, model):
    """The answer to a task."""
    chat = CLIENT.with_options(base_url=base_url).chat.completions
    reply = chat.create(model=model, messages=[*EXAMPLE, {"role": "user", "content": prompt}], max_tokens=16)
    return reply.choices[0].message.content
