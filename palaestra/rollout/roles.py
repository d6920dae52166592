"""Roles: the policy, context, prompt, parser and tools of an agent.

Tools of a role may be called by that role only, in any program. The library runs the calls, and the role reads the
results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from palaestra.chat.readers import Bare, Reader
from palaestra.data import Action, Observation, Step, ToolCall
from palaestra.data.abilities import has
from palaestra.data.protocols import Policy, Sampling
from palaestra.tools import Parsed, Tool, Toolbox
from palaestra.tools.formats import format_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTools:
    """The tools that a role may call, and the limits of its calls.

    Attributes:
        tools: the tools, with different names.
        format: the format of calls, a key of palaestra.tools.formats.FORMATS.
        rounds: the most texts in a row whose calls are answered. The next text is the response, also if it has calls.
        max_calls: the most calls of an episode, in all conversations together. None: no limit.
        max_chars: the most characters of a result.
        repeat: show the observation and the calls so far above each result, for contexts that show only the latest.
    """

    tools: tuple[Tool, ...] = ()
    format: str = "json"
    rounds: int = 2
    max_calls: int | None = None
    max_chars: int = 1000
    repeat: bool = False


@dataclass(slots=True, kw_only=True)
class Role:
    """What a recipe says of an agent: its policy, its context, its prompt and its tools.

    Attributes:
        context: makes prompts from the history of the role.
        frozen: the role's acts are never learned from; other roles of its policy may be.
        opponent: the role's acts are not learned from and count in no statistic, as for an opponent from a pool.
        prompt: a text around each observation; "{text}" stands for the observation, "{tools}" for the use of the tools.
        instruction: "environment", "none", or a text in which "{environment}" stands for the environment's; None:
            "environment" for a policy with a chat template, else "none".
        reader: takes the act out of a reply.
        parser: reads a text, and gives None for one that cannot be read; used in place of the program's own.
        tools: the tools that only this role may call, in any program.
        acts_for: the environment's agent for which the role acts; None: the only one.
        sampling: temperature, top_k, top_p and max_tokens, where the role has its own.
    """

    policy: Policy
    context: Any = None
    frozen: bool = False
    opponent: bool = False
    prompt: str | None = None
    instruction: str | None = None
    reader: Reader = field(default_factory=Bare)
    parser: Callable[[str], Any] | None = None
    tools: RoleTools | None = None
    acts_for: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def sampling_of(self, given: Sampling) -> Sampling:
        """How this role's actions are drawn. If `given` is exact, only the role's own `max_tokens` replaces it."""
        changes = {name: value for name, value in self.sampling.items() if name == "max_tokens" or not given.exact}
        return replace(given, **changes) if changes else given

    def read(self, step: Step) -> None:
        """Let the reader take the act out of a step's reply. A reply that it cannot read becomes an empty act."""
        reply = step.action.text
        if reply is None or isinstance(self.reader, Bare):
            return
        act = self.reader.read(reply)
        if act is None:
            step.info["invalid"] = 1.0
        if act != reply:
            step.action = replace(step.action, text=act or "", value=act or "", reply=reply)

    def written(self, action: Action) -> Action:
        """A given action with a reply in which the reader finds it."""
        if action.text is None or isinstance(self.reader, Bare):
            return action
        return replace(action, text=self.reader.write(action.text), value=None)

    def told(self, agent: str, environment: Any) -> str | None:
        """What an agent of this role reads at the head of its prompts; None: nothing of its own.

        Args:
            environment: the run's source, whose ability `instruction` is asked. It speaks to its own agents, and to a
                role with another name if the role says `instruction` and the environment has a single agent.
        """
        chosen = self.instruction
        if chosen is None:
            chosen = "environment" if getattr(getattr(self.policy, "renderer", None), "instructed", False) else "none"
        if chosen == "none":
            return None
        text = "{environment}" if chosen == "environment" else chosen
        if "{environment}" in text:
            text = text.replace("{environment}", self._rules(self.acts_for or agent, environment)).strip()
        return "\n\n".join(filter(None, (text, self.reader.explain()))) or None

    def _rules(self, agent: str, environment: Any) -> str:
        if environment is None or not has(environment, "instruction"):
            return ""
        agents = tuple(environment.agents)
        if agent not in agents and self.instruction is not None and len(agents) == 1:
            agent = agents[0]
        return str(environment.instruction(agent)) if agent in agents else ""


# ---- calls of tools ----------------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class AgentTools:
    """The tools of one agent in one episode, and those that only other roles have.

    Attributes:
        declared: the tools of its role; None, if it has none.
        known: name → tool, of all roles of the run. A call of another role's tool is recognized, but not run.
        formats: the format of this role's calls, or those of the other roles if it has no tools.
        toolbox: runs its tools. All conversations of the role in the episode share it, and so the limit of calls.
    """

    declared: RoleTools | None
    known: Mapping[str, Tool]
    formats: tuple[str, ...]
    toolbox: Toolbox

    @property
    def rounds(self) -> int:
        """The most texts in a row whose calls are answered; 1 without tools, to answer that there are none."""
        return 1 if self.declared is None else self.declared.rounds

    def read(self, text: str) -> Parsed:
        """The calls of a text. For a role without tools, only a call of another role's tool is one."""
        if self.declared is not None:
            parsed = self.toolbox.format.parse(text, self.known)
            if parsed.fault is not None:
                self.toolbox.unread()
            return parsed
        for name in self.formats:
            calls = tuple(call for call in format_of(name).parse(text, self.known).calls if call.name in self.known)
            if calls:
                return Parsed(calls)
        return Parsed(said=text)

    async def run(self, text: str, step: Step, *, last: bool) -> str | None:
        """The results of the calls of a text; None, if it has no calls. The step's info counts them.

        Args:
            last: no round is left, so that calls are not run and the text is the response.
        """
        parsed = self.read(text)
        made = len(parsed.calls) if parsed.fault is None else 1
        if last or not parsed.calls:
            if made or self.declared is not None:
                step.info |= {"tool_call": float(made), "tool_error": float(made)}
            return None if last or parsed.fault is None else f"error: {parsed.fault}"
        return await self.call(parsed.calls, step)

    async def call(self, calls: Sequence[ToolCall], step: Step) -> str:
        """The results of these calls. The step's info counts the calls and those that failed."""
        results = await self.toolbox.gather(calls)
        failed = sum(not result.ok for result in results)
        step.info |= {"tool_call": float(len(results)), "tool_error": float(failed)}
        return "\n".join(result.text for result in results)

    def shown(self, observation: Observation, said: str, results: str) -> Observation:
        """The observation that the agent reads after a call."""
        answer = f"tool: {results}"
        head = observation.text if self.declared is not None and self.declared.repeat else None
        key = None if observation.state_key is None else f"{observation.state_key}\n{said}\n{answer}"
        instruction = observation.instruction if head is not None else None
        text = answer if head is None else f"{head}\n{said}\n{answer}"
        return replace(observation, text=text, state_key=key, instruction=instruction)


def tools_of(role: Role, roles: Mapping[str, Role], *, earlier: AgentTools | None = None) -> AgentTools | None:
    """The tools of an agent of this role; None, if no role of the run has tools.

    Args:
        earlier: the tools of another conversation of the role in the same episode, whose toolbox is shared.
    """
    equipped = [other.tools for other in roles.values() if other.tools is not None and other.tools.tools]
    if not equipped:
        return None
    formats = dict.fromkeys([role.tools.format] if role.tools is not None else [tools.format for tools in equipped])
    declared = role.tools or RoleTools(format=next(iter(formats)))
    toolbox = Toolbox(
        declared.tools, format=declared.format, max_calls=declared.max_calls, max_chars=declared.max_chars
    )
    known = {tool.name: tool for tools in equipped for tool in tools.tools}
    return AgentTools(role.tools, known, tuple(formats), toolbox if earlier is None else earlier.toolbox)


def phrases_of(names: Sequence[str]) -> list[str]:
    """Texts around calls and results of these tools, for a tokenizer. Each is given twice, since a word that
    occurs only once becomes no token."""
    return [text for name in names for text in (name, f"x\n{name}", "x\ntool: error:")] * 2
