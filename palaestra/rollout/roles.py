"""Roles: which policy plays a name of an episode, what it is shown, how it speaks, and which tools it may call.

Tools of a role are what one role alone may call, in any program. The calls are run, and the role reads the results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from palaestra.data import Observation, Step, ToolCall
from palaestra.data.protocols import Policy, Sampling
from palaestra.tools import Parsed, Tool, Toolbox
from palaestra.tools.formats import format_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTools:
    """What a role may call.

    Attributes:
        tools: with different names.
        format: how it writes calls, a key of palaestra.tools.formats.FORMATS.
        rounds: how often in a row calls are answered; what the role says then is its response, whatever it is.
        max_calls: of an episode, in all conversations together. None: no limit.
        max_chars: of a result.
        repeat: what it was shown and its calls so far stand above each result: for contexts that show the latest only.
    """

    tools: tuple[Tool, ...] = ()
    format: str = "json"
    rounds: int = 2
    max_calls: int | None = None
    max_chars: int = 1000
    repeat: bool = False


@dataclass(slots=True, kw_only=True)
class Role:
    """One name in an episode: the policy that plays it, what it is shown, and how it speaks.

    Attributes:
        context: through which it sees its history.
        frozen: its acts are never learned from; the others of its policy are.
        opponent: nor do they count in any statistic: an opponent from a pool, a stand-in.
        prompt: stands around whatever it is shown; "{text}" is that, "{tools}" how its tools are called.
        parser: text to what it means, None if it means nothing; in place of the program's own.
        tools: what it alone may call, in whatever program.
        acts_for: the environment's agent whose actions it gives; None: the only one.
        sampling: temperature, top_k, top_p and max_tokens that are its own.
    """

    policy: Policy
    context: Any = None
    frozen: bool = False
    opponent: bool = False
    prompt: str | None = None
    parser: Callable[[str], Any] | None = None
    tools: RoleTools | None = None
    acts_for: str | None = None
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def sampling_of(self, given: Sampling) -> Sampling:
        """How this role's actions are drawn; where `given` is exact only its own length counts."""
        changes = {name: value for name, value in self.sampling.items() if name == "max_tokens" or not given.exact}
        return replace(given, **changes) if changes else given


# ---- calls of tools ----------------------------------------------------------------------------------------
@dataclass(slots=True, eq=False)
class AgentTools:
    """The tools of one agent in one episode, and those that only others have.

    Attributes:
        declared: of its role; None: it has none.
        known: name → tool, of all roles of the run. A call of one that is another role's is recognized, and not run.
        formats: how calls may be written: as this role's, else as those of the others.
        toolbox: of its tools; one for all conversations of the role in the episode, so that they share a budget.
    """

    declared: RoleTools | None
    known: Mapping[str, Tool]
    formats: tuple[str, ...]
    toolbox: Toolbox

    @property
    def rounds(self) -> int:
        """How often in a row calls are answered; one who has no tool is told so once."""
        return 1 if self.declared is None else self.declared.rounds

    def read(self, text: str) -> Parsed:
        """The calls of a text. Who has no tools can only mean one of others: everything else that it says is speech."""
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
        """What came of the calls of a text; None if it has none. The step tells of them.

        Args:
            last: there is no round left: its calls are not run, and it is the response.
        """
        parsed = self.read(text)
        made = len(parsed.calls) if parsed.fault is None else 1
        if last or not parsed.calls:
            if made or self.declared is not None:
                step.info |= {"tool_call": float(made), "tool_error": float(made)}
            return None if last or parsed.fault is None else f"error: {parsed.fault}"
        return await self.call(parsed.calls, step)

    async def call(self, calls: Sequence[ToolCall], step: Step) -> str:
        """The results of these calls. The step tells how many there were, and how many failed."""
        results = await self.toolbox.gather(calls)
        failed = sum(not result.ok for result in results)
        step.info |= {"tool_call": float(len(results)), "tool_error": float(failed)}
        return "\n".join(result.text for result in results)

    def shown(self, observation: Observation, said: str, results: str) -> Observation:
        """What the agent reads after a call."""
        answer = f"tool: {results}"
        head = observation.text if self.declared is not None and self.declared.repeat else None
        key = None if observation.state_key is None else f"{observation.state_key}\n{said}\n{answer}"
        instruction = observation.instruction if head is not None else None
        text = answer if head is None else f"{head}\n{said}\n{answer}"
        return replace(observation, text=text, state_key=key, instruction=instruction)


def tools_of(role: Role, roles: Mapping[str, Role], *, earlier: AgentTools | None = None) -> AgentTools | None:
    """The tools of an agent of this role; None where no role of the run has tools.

    Args:
        earlier: of another conversation of the role in the same episode: both share its toolbox.
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
    """What stands around calls and results of these tools, for a tokenizer; twice, for words seen once are no token."""
    return [text for name in names for text in (name, f"x\n{name}", "x\ntool: error:")] * 2
