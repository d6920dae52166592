"""The whole flow in one file, without the library: sampler → rollout → reward → selection → advantage →
weights → loss → optimizer, for a language model that plays several turns.

Run it: `python docs/one_file.py`. A test holds it equal to the library's first update: same prompts, same
seeds, same sampled tokens, same weights afterwards. Left out: batching of generation, the cache of keys and
values, evaluation, checkpoints, several policies. Shapes stand beside tensors.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

# ---- the task: say the word you are told, twice ---------------------------------------------------------------
COLORS = ["red", "green", "blue", "gold"]
VOCABULARY = ["<observation>", "<action>", "<end>", "say", *COLORS]
ID = {word: number for number, word in enumerate(VOCABULARY)}
TURNS, TASKS, GROUP, RESPONSE = 2, 6, 8, 1  # RESPONSE: most tokens of one answer


@dataclass
class Turn:
    """One act: the ids that are new in the prompt, the ids that were sampled, and what it earned."""

    prompt: list[int]
    response: list[int]
    reward: float


@dataclass
class Episode:
    task: int
    sample: int
    turns: list[Turn] = field(default_factory=list)

    @property
    def total(self) -> float:
        return sum(turn.reward for turn in self.turns)


def color(task: int, turn: int) -> str:
    """What the environment asks for."""
    return COLORS[derive(task, turn) % len(COLORS)]


# ---- random numbers that only names decide -----------------------------------------------------------------------
def derive(seed: int, *names: object) -> int:
    """A seed from a seed and names, the same in every process."""
    content = "\x1f".join([str(seed), *map(str, names)]).encode()
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "big") >> 1


def uniform(seed: int, place: int) -> float:
    """Number `place` of the stream of `seed`, in [0, 1): splitmix64, no state."""

    def mix(x: int) -> int:
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        return x ^ (x >> 31)

    return (mix((mix(seed) + (place + 1) * 0x9E3779B97F4A7C15) % 2**64) >> 11) * 2.0**-53


# ---- the policy ------------------------------------------------------------------------------------------------
def make_model() -> LlamaForCausalLM:
    """A small Llama."""
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=len(VOCABULARY), max_position_embeddings=64, tie_word_embeddings=True, **size)
    return LlamaForCausalLM(config).eval()


@torch.no_grad()
def generate(model: LlamaForCausalLM, prompt: list[int], seed: int) -> list[int]:
    """Sample a response by inverting the distribution function, token by token."""
    response: list[int] = []
    while len(response) < RESPONSE and ID["<end>"] not in response:
        logits = model(torch.tensor([prompt + response])).logits[0, -1]  # (vocabulary,)
        cumulative = logits.softmax(-1).double().cumsum(-1)  # (vocabulary,)
        target = uniform(seed, len(response)) * cumulative[-1]
        response.append(int(torch.searchsorted(cumulative, target, right=True)))
    return response


# ---- 1 sampler, 2 rollout, 3 reward ---------------------------------------------------------------------------
def play(model: LlamaForCausalLM, task: int, sample: int) -> Episode:
    """One episode. The prompt grows by appending; earlier ids are never rendered again."""
    episode, history = Episode(task, sample), []
    for turn in range(TURNS):
        new = [ID["<observation>"], ID["say"], ID[color(task, turn)], ID["<action>"]]
        response = generate(model, history + new, derive(task, sample, turn))
        said = [VOCABULARY[i] for i in response if i != ID["<end>"]]
        reward = float(said == [color(task, turn)])
        episode.turns.append(Turn(new, response, reward))
        history += new + response
    return episode


def rollout(model: LlamaForCausalLM, iteration: int) -> list[list[Episode]]:
    """GROUP episodes of each of TASKS tasks."""
    tasks = [derive(iteration, "task", i) for i in range(TASKS)]
    return [[play(model, task, sample) for sample in range(GROUP)] for task in tasks]


# ---- 4 selection, 5 advantage ------------------------------------------------------------------------------------
def advantages(groups: list[list[Episode]]) -> list[list[float]]:
    """GRPO: (return − mean of the group) / (deviation of the group + 1e-6); 0 where all are equal."""
    result = []
    for group in groups:
        total = torch.tensor([episode.total for episode in group], dtype=torch.float64)  # (GROUP,)
        centered = (total - total.mean()) / (total.std() + 1e-6)
        result.append([0.0] * len(group) if bool((total == total[0]).all()) else centered.tolist())
    return result


# ---- 6 weights (all 1 here), 7 loss ------------------------------------------------------------------------------
def logprobs(model: LlamaForCausalLM, episode: Episode) -> Tensor:
    """Log-probabilities of the episode's response tokens: the whole episode is one sequence."""
    ids: list[int] = []
    places: list[int] = []  # where response tokens stand
    for turn in episode.turns:
        ids += turn.prompt
        places += range(len(ids), len(ids) + len(turn.response))
        ids += turn.response
    sequence, place = torch.tensor([ids]), torch.tensor(places)
    logits = model(sequence).logits[0, place - 1]  # (tokens, vocabulary)
    return logits.log_softmax(-1).gather(1, sequence[0, place][:, None])[:, 0]  # (tokens,)


def loss_of(new: Tensor, old: Tensor, advantage: float, low: float = 0.2, high: float = 0.2) -> Tensor:
    """PPO's clipped surrogate per token: (tokens,)."""
    ratio = (new - old).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def update(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, groups: list[list[Episode]]) -> float:
    """One step on all episodes; the loss is the mean over all their tokens. Those without an advantage move nothing, so
    that they are not read, and their tokens count all the same."""
    pairs = [
        (episode, credit)
        for group, numbers in zip(groups, advantages(groups), strict=True)
        for episode, credit in zip(group, numbers, strict=True)
    ]
    if not any(credit for _, credit in pairs):
        return 0.0
    tokens = sum(len(turn.response) for episode, _ in pairs for turn in episode.turns)
    optimizer.zero_grad()
    for episode, credit in pairs:
        if credit == 0:
            continue
        new = logprobs(model, episode)
        (loss_of(new, new.detach(), credit).sum() / tokens).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(norm)


def main(iterations: int = 80, rate: float = 3e-3) -> float:
    """Train; returns the mean return of the last iteration (the best possible is 2)."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    mean = 0.0
    for iteration in range(iterations):
        groups = rollout(model, iteration)
        norm = update(model, optimizer, groups)
        mean = sum(episode.total for group in groups for episode in group) / (TASKS * GROUP)
        if iteration % 10 == 0 or iteration == iterations - 1:
            print(f"iteration {iteration:3d}  return {mean:.2f}  gradient {norm:.2f}")
    return mean


if __name__ == "__main__":
    main()
