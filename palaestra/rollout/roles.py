"""Roles: the policy, context, prompt, parser and tools of an agent.

Tools of a role may be called by that role only, in any program. The library runs the calls, and the role reads the
results.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from palaestra.boundary.cleaning import Counts
from palaestra.chat.readers import Bare, Reader
from palaestra.chat.reply_calls import calls_of
from palaestra.chat.template_tools import call_in_words, result_of
from palaestra.data import Action, Observation, Step, ToolCall
from palaestra.data.abilities import has
from palaestra.data.protocols import Policy, Sampling
from palaestra.errors import EpisodeFailure
from palaestra.registry import declared as declared_by
from palaestra.tools import Parsed, Tool, Toolbox
from palaestra.tools.formats import format_of

NATIVE = "native"  # stands for the format of calls that a chat template writes
CALL = r"""["'<]{name}\b|(?<!\w){name}(?:\(|[ ][A-Z]{{2}})"""  # `"find"`, `<find>`, `find(` or `find ID`
ALONE = "error: this tool acts in the environment; call it in a reply without calls of other tools"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleTools:
    """The tools that a role may call, and the limits of its calls.

    Attributes:
        tools: the tools, with different names.
        format: the format of calls, a key of palaestra.tools.formats.FORMATS.
        native: the chat template of the policy declares the tools, those of the environment among them, and calls have
            the form that the model was taught.
        rounds: the most texts in a row whose calls are answered. The next text is the response, also if it has calls.
        max_calls: the most calls of an episode, in all conversations together. None: no limit.
        max_chars: the most characters of a result.
        repeat: show the observation and the calls so far above each result, for contexts that show only the latest.
    """

    tools: tuple[Tool, ...] = ()
    format: str = "json"
    native: bool = False
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
        if action.text is None or action.tool_calls or isinstance(self.reader, Bare):
            return action
        return replace(action, text=self.reader.write(action.text), value=None)

    def prompted(self, observation: Observation, tools: AgentTools | None) -> Observation:
        """The observation with the prompt around its text, and around its last message of the user."""
        explained = "" if tools is None or tools.native else tools.toolbox.explain()
        prompt = (self.prompt or "{text}").replace("{tools}", explained)
        messages = [dict(message) for message in observation.messages or ()]
        last = next((message for message in reversed(messages) if message["role"] == "user"), None)
        if last is not None:
            last["content"] = prompt.replace("{text}", last["content"])
        text = None if observation.text is None else prompt.replace("{text}", observation.text)
        return replace(observation, text=text, messages=messages or None)

    def told(self, agent: str, environment: Any) -> str | None:
        """What an agent of this role reads at the head of its prompts; None: nothing of its own.

        Args:
            environment: the run's source, whose ability `instruction` is asked. It speaks to its own agents, and to a
                role with another name if the role says `instruction` and the environment has a single agent.
        """
        chosen = self.instruction
        if chosen is None:
            chosen = "environment" if self.policy.renderer is not None and self.policy.renderer.instructed else "none"
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
@dataclass(frozen=True, slots=True)
class Results:
    """The results of the calls of one text, in their order. Without calls: the error of a text that cannot be read."""

    calls: Sequence[ToolCall]
    texts: Sequence[str]
    replaced: Counts = field(default_factory=Counter)

    @property
    def text(self) -> str:
        """All results, one after the other."""
        return "\n".join(self.texts)


@dataclass(slots=True, eq=False)
class AgentTools:
    """The tools of one agent in one episode, and those that only other roles have.

    Attributes:
        declared: the tools of its role; None, if it has none.
        known: name → tool, of all roles of the run. A call of another role's tool is recognized, but not run.
        formats: the format of this role's calls, or those of the other roles if it has no tools.
        toolbox: runs its tools. All conversations of the role in the episode share it, and so the limit of calls.
        renderer: of the role's policy; it reads calls of the format "native".
        acts: the tools of the environment, as it declares them. Their calls are acts of the role.
    """

    declared: RoleTools | None
    known: Mapping[str, Tool]
    formats: tuple[str, ...]
    toolbox: Toolbox
    renderer: Any = None
    acts: tuple[Mapping[str, Any], ...] = ()

    @property
    def native(self) -> bool:
        """Whether the chat template declares the tools."""
        return self.declared is not None and self.declared.native

    @property
    def declarations(self) -> tuple[Mapping[str, Any], ...]:
        """The tools that the chat template declares: those of the role, and those of the environment."""
        if not self.native:
            return ()
        acts = self._acts()
        return (
            *(one.declaration() for one in self.toolbox.tools.values()),
            *(one for one in self.acts if one["function"]["name"] in acts),
        )

    @property
    def rounds(self) -> int:
        """The most texts in a row whose calls are answered; 1 without tools, to answer that there are none."""
        return 1 if self.declared is None else self.declared.rounds

    def read(self, text: str) -> Parsed:
        """The calls of a text. For a role without tools, only a call of another role's tool is one."""
        if self.declared is not None:
            parsed = self._parse(text)
            if parsed.fault is not None:
                self.toolbox.unread()
            return parsed
        for name in self.formats:
            parsed = calls_of(text) if name == NATIVE else format_of(name).parse(text, self.known)
            calls = tuple(call for call in parsed.calls if call.name in self.known)
            if calls:
                return Parsed(calls)
        return Parsed(said=text)

    def _parse(self, text: str) -> Parsed:
        if not self.native:
            return self.toolbox.format.parse(text, self.known)
        read = calls_of if self.renderer is None else self.renderer.calls
        parsed: Parsed = read(text, self.declarations)
        return parsed

    def write(self, call: ToolCall) -> str:
        """A call as a demonstration writes it."""
        return call_in_words(call) if self.native else self.toolbox.write(call)

    async def run(self, text: str, step: Step, *, last: bool) -> Results | None:
        """The results of the calls of a text; None, if it has no calls. The step's info counts them.

        Args:
            last: no round is left, so that calls are not run and the text is the response.
        """
        if self.native and not self.toolbox.tools:
            return None  # all calls are acts
        parsed = self.read(text)
        if self.native and parsed.calls and not self._own(parsed.calls):
            return None
        made = len(parsed.calls) if parsed.fault is None else 1
        if last or not parsed.calls:
            if made or self.declared is not None:
                step.info |= {"tool_call": float(made), "tool_error": float(made)}
            return None if last or parsed.fault is None else Results((), [f"error: {parsed.fault}"])
        return await self.call(parsed.calls, step)

    async def call(self, calls: Sequence[ToolCall], step: Step) -> Results:
        """The results of these calls. The step's info counts the calls and those that failed."""
        acts = self._acts()
        results = iter(await self.toolbox.gather([call for call in calls if call.name not in acts]))
        found = [None if call.name in acts else next(results) for call in calls]
        failed = sum(result is None or not result.ok for result in found)
        step.info |= {"tool_call": float(len(found)), "tool_error": float(failed)}
        replaced: Counts = Counter()
        for result in found:
            replaced.update({} if result is None else result.replaced)
        return Results(calls, [ALONE if result is None else result.text for result in found], replaced)

    def _acts(self) -> set[str]:
        """The names of the environment's tools that are no tools of the role."""
        return {one["function"]["name"] for one in self.acts} - self.toolbox.tools.keys()

    def _own(self, calls: Sequence[ToolCall]) -> bool:
        """Whether any of these calls is for the role's own tools, or for none."""
        return any(call.name not in self._acts() for call in calls)

    def act(self, step: Step) -> bool:
        """Make the calls of the environment's tools in a reply the act. Returns whether the reply has such calls.

        The environment gets them as JSON. A call that cannot be read goes to the environment as it is.
        """
        reply = step.action.text
        if not self.acts or reply is None:
            return False
        parsed = self._parse(reply)
        if parsed.fault is not None:
            step.info["invalid"] = 1.0
            return True
        if not parsed.calls or (self.toolbox.tools and self._own(parsed.calls)):
            return False
        calls = [ToolCall(name=call.name, arguments=call.arguments) for call in parsed.calls]
        text = "\n".join(format_of("json").write(call) for call in calls)
        step.action = replace(step.action, text=text, value=text, reply=reply, tool_calls=calls)
        return True

    def demonstrated(self, action: Action) -> Action:
        """A given action, with its calls of the environment's tools where the template writes them."""
        if not self.acts or action.tool_calls or action.text is None:
            return action
        return replace(action, tool_calls=format_of("json").parse(action.text, {}).calls)

    def shown(self, observation: Observation, said: str, results: Results) -> Observation:
        """The observation that the agent reads after a call."""
        answer = f"tool: {results.text}"
        head = observation.text if self.declared is not None and self.declared.repeat else None
        key = None if observation.state_key is None else f"{observation.state_key}\n{said}\n{answer}"
        instruction = observation.instruction if head is not None else None
        text = answer if head is None else f"{head}\n{said}\n{answer}"
        messages = None
        if self.native:
            names = [call.name for call in results.calls] or [""]
            messages = [result_of(text, name) for name, text in zip(names, results.texts, strict=True)]
        return replace(observation, text=text, messages=messages, state_key=key, instruction=instruction, tools=None)


def refuse_hidden_tools(role: Role, agent: str, shown: Observation, rules: str | None) -> None:
    """Refuse a world whose acts are calls of tools, if nothing that the agent reads says how a call is written.

    Only chat models and policies with a chat template are asked. Others learn the calls from demonstrations, or need no
    words. A prompt or an instruction of the recipe's own may say it in any way.

    Args:
        agent: of the environment. shown: its first observation. rules: what the role says before it.

    Raises: EpisodeFailure, which names `tools.native`.
    """
    renderer = role.policy.renderer
    if not shown.tools or role.prompt is not None or role.instruction not in (None, "environment", "none"):
        return
    reads_words = declared_by(role.policy, "chat_model") or (renderer is not None and renderer.instructed)
    if not reads_words or (role.tools is not None and role.tools.native):
        return
    said = [rules, shown.instruction, shown.text, *(str(one["content"]) for one in shown.messages or ())]
    read = "\n".join(text for text in said if text)
    names = [tool["function"]["name"] for tool in shown.tools]
    if any(re.search(CALL.format(name=re.escape(name)), read) for name in names):
        return
    raise EpisodeFailure(
        boundary="part",
        where=f"agents.*.tools.native, role {agent}",
        what=f"the acts of this environment are calls of {', '.join(names)}, and nothing tells the model how to write "
        "one.",
        remedy="Set agents.*.tools.native=true, so that the chat template declares them. Or describe the calls in "
        "`agents.*.instruction`.",
    )


def declared(observation: Observation, tools: AgentTools | None, *, first: bool) -> Observation:
    """The observation with the tools that the chat template declares. Then it needs no manual of the tools in words.

    Args:
        tools: of the agent. first: the observation begins the conversation, which reads the tools there.
    """
    if tools is not None and tools.native:
        tools.acts = tools.acts if observation.tools is None else tuple(observation.tools)
        given = (tools.declarations or None) if first else None
        return replace(observation, tools=given, instruction=_without_manual(observation), manual=None)
    return observation if observation.tools is None else replace(observation, tools=None)


def _without_manual(observation: Observation) -> str | None:
    told, manual = observation.instruction, observation.manual
    return told if told is None or not manual else told.replace(manual, "").strip() or None


def tools_of(role: Role, roles: Mapping[str, Role], *, earlier: AgentTools | None = None) -> AgentTools | None:
    """The tools of an agent of this role; None, if no role of the run has tools.

    Args:
        earlier: the tools of another conversation of the role in the same episode, whose toolbox is shared.
    """
    given = [other.tools for other in roles.values() if other.tools is not None]
    equipped = [tools for tools in given if tools.tools or tools.native]
    if not equipped:
        return None
    formats = dict.fromkeys(NATIVE if one.native else one.format for one in ([role.tools] if role.tools else equipped))
    declared = role.tools or RoleTools(format=equipped[0].format)
    toolbox = earlier.toolbox if earlier is not None else _toolbox(declared)
    known = {tool.name: tool for tools in equipped for tool in tools.tools}
    return AgentTools(role.tools, known, tuple(formats), toolbox, role.policy.renderer)


def _toolbox(declared: RoleTools) -> Toolbox:
    return Toolbox(declared.tools, format=declared.format, max_calls=declared.max_calls, max_chars=declared.max_chars)


def phrases_of(names: Sequence[str]) -> list[str]:
    """Texts around calls and results of these tools, for a tokenizer. Each is given twice, since a word that
    occurs only once becomes no token."""
    return [text for name in names for text in (name, f"x\n{name}", "x\ntool: error:")] * 2
