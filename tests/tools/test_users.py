"""What must hold of users, who talk to an agent:

1. A scripted user tells only what it was asked, one fact a turn, in the agent's order.
2. It says yes to its wish with all values, no to anything else, and changes its mind once if the brief says so.
3. News that a wish is settled, true or not, brings the next wish; after the last, the stop token ends the dialogue.
4. Vague, open, misspeaking and impatient users behave so; wordings change words, not facts.
5. Questions, confirmations and news are understood in templates and in sentences.
6. Snapshots restore the state of a dialogue; calls out of order are refused.
7. A static user reads out its lines whatever it hears.
8. A chat user speaks OpenAI's or Anthropic's protocol: the brief is the system message, and the agent's text has the
   role `user`; address and key come from environment variables; time-outs and errors are tried again and at last, like
   an empty answer, are failures of the environment; the stop token ends the dialogue.
9. A desk with a chat user has to be awaited; only a message to the user asks the model, calls of tools do not.
"""

from __future__ import annotations

import asyncio

import pytest

from palaestra.data import Action
from palaestra.envs.worlds.desk.world import Desk
from palaestra.errors import ContractError, EpisodeFailure, RecipeError
from palaestra.tools.users.brief import STOP, Brief, Wish
from palaestra.tools.users.chat import ChatSettings, ChatUser
from palaestra.tools.users.hearing import agrees, asked, asks_to_confirm, mentions, statements
from palaestra.tools.users.scripted import WORDINGS, Line, ScriptedUser, StaticUser
from tests.chat_server import ChatServer
from tests.extras import skip_without
from tests.messages import told

HEARS = {"name": ("name",), "order": ("order",), "size": ("size",), "request": ("request", "help"), "age": ("age",)}
SWAP = Wish(name="swap", text=("i want to swap.", "swap please."), facts={"order": "fox", "size": "big"})
BACK = Wish(name="back", text=("i want to give it back.",), facts={"order": "owl"}, settled=("done", "refused"))


def brief(*wishes, **more):
    return Brief(wishes=wishes or (SWAP, BACK), about={"name": "ana"}, hears=HEARS, **more)


def begun(*wishes, **more):
    user = ScriptedUser()
    return user, user.begin(brief(*wishes, **more))


def test_answers_what_was_asked():  # rule 1
    user, first = begun()
    assert first == ("i want to swap.", False) and user.told == {"request": "swap"}
    assert user.reply("what are your size and order?").text == "my size is big."
    assert user.reply("what are your size and order?").text == "my order is fox."
    assert user.reply("ask size").text == "my size is big."
    assert user.reply("ask age").text == "i do not know."
    assert user.reply("nice weather").text == "what do you mean?"
    assert user.told == {"request": "swap", "size": "big", "order": "fox"}
    assert user.reply("ask name").text == "my name is ana."


def test_confirms_what_it_wants():  # rule 2
    user, _ = begun()
    for text in ("confirm swap fox", "confirm swap owl big", "confirm back fox big", "Shall I cancel fox, big?"):
        assert user.reply(text).text == "no, that is not what i want."
    assert user.reply("confirm swap fox big").text == "yes."
    assert user.reply("Should I swap it: order Fox, size BIG?").text == "yes."
    assert user.told["order"] == "fox"


def test_changes_its_mind_once():  # rule 2
    user, _ = begun(Wish(name="swap", text=("swap.",), facts={"size": "big"}, change=("size", "small")))
    assert user.reply("confirm swap big").text == "no, i changed my mind: size small instead."
    assert user.told["size"] == "small"
    assert user.reply("confirm swap big").text == "no, that is not what i want."
    assert user.reply("confirm swap small").text == "yes."


def test_goes_on_and_ends():  # rule 3
    user, _ = begun()
    user.reply("ask name")
    assert user.reply("it is done. anything else?") == ("i want to give it back.", False)
    assert user.told == {"name": "ana", "request": "back"} and user.place == 1
    assert user.reply("I am sorry, that was refused.") == (f"thank you. {STOP}", True)
    assert user.place == 2
    with pytest.raises(ContractError, match="the dialogue is over"):
        user.reply("done")


def test_vague_and_open():  # rule 4
    user, first = begun(vague=True)
    assert first.text == "hello, i need help." and user.told == {}
    assert user.reply("How can I help you?").text == "i want to swap."
    user, first = begun(open=True)
    assert first.text == "i want to swap. my name is ana. my order is fox. my size is big."
    assert user.told == {"request": "swap", "name": "ana", "order": "fox", "size": "big"}


def test_misspeaks_and_corrects():  # rule 4
    user, _ = begun(misspeaks={"size": "tiny"})
    assert user.reply("ask size").text == "my size is tiny." and user.correcting
    assert user.reply("ask name").text == "sorry, i misspoke: size big. my name is ana."
    assert user.told["size"] == "big" and not user.correcting
    assert user.reply("ask size").text == "my size is big."
    user, _ = begun(misspeaks={"order": "owl"})
    user.reply("ask order")
    assert user.reply("confirm swap owl big").text == "sorry, i misspoke: order fox."


def test_impatience():  # rule 4
    user, _ = begun(patience=2)
    assert not user.reply("hm").over
    assert not user.reply("ask size").over  # of use: it counts anew
    assert not user.reply("ask size").over
    assert user.reply("ask size") == (f"i have had enough. {STOP}", True)


def test_wordings_change_words_only():  # rule 4
    said = []
    for wording in range(WORDINGS):
        user, first = begun(wording=wording)
        answer = user.reply("ask size").text
        assert mentions(answer, "big") and agrees(user.reply("confirm swap fox big").text)
        said.append((first.text, answer))
    assert len(set(said)) == WORDINGS


def test_asides():
    user, first = begun(asides={0: "psst.", 1: "ignore that."})
    assert first.text == "i want to swap. psst." and user.reply("ask size").text == "my size is big. ignore that."


def test_hearing():  # rule 5
    assert asked("ask order", HEARS) == ["order"]
    assert asked("Your order is here. What is your name?", HEARS) == ["name"]
    assert asked("Could you give me the size and the order, please", HEARS) == ["size", "order"]
    assert asked("your order is here", HEARS) == []
    assert asks_to_confirm("Please confirm: cancel fox.") and not asks_to_confirm("it is done")
    assert agrees("Yes, go ahead.") and not agrees("no, yes") and not agrees("eyes")
    assert statements("It is done. Anything else?").strip() == "it is done."
    assert mentions("It is DONE.", "done") and not mentions("undone", "done")


def test_snapshots():  # rule 6
    user, _ = begun()
    user.reply("ask size")
    state = user.snapshot()
    user.reply("done")
    user.restore(state)
    assert user.told == {"request": "swap", "size": "big"} and user.reply("done").text == "i want to give it back."
    with pytest.raises(ContractError, match="`begin` was not called"):
        ScriptedUser().reply("hello")
    with pytest.raises(ContractError, match="no wish"):
        ScriptedUser().begin(Brief(wishes=()))


def test_static():  # rule 7
    user = StaticUser([Line("a", {}), Line("b", {"size": "big"}), Line("c", {})])
    assert user.begin(brief()) == ("a", False)
    assert user.reply("whatever") == ("b", False) and user.told == {"size": "big"}
    state = user.snapshot()
    assert user.reply("") == ("c", True)
    again = StaticUser()
    again.restore(state)
    assert again.reply("x") == ("c", True)
    with pytest.raises(ContractError, match="it has no line"):
        StaticUser().begin(brief())


# ---- a chat model -----------------------------------------------------------------------------------------
@pytest.fixture
def at(monkeypatch):
    """Sets the environment variables for an endpoint."""

    def here(endpoint):
        monkeypatch.setenv("USER_URL", endpoint.url)
        monkeypatch.setenv("USER_KEY", "of-the-test")
        return {"model": "m", "url": "USER_URL", "key": "USER_KEY", "retries": 0}

    return here


def talk(settings, *texts):
    """What a chat user says to these texts."""

    async def run():
        user = ChatUser(ChatSettings(**settings))
        try:
            return user, [await user.begin(brief()), *[await user.reply(text) for text in texts]]
        finally:
            await user.close()

    return asyncio.run(run())


def test_a_chat_user_speaks(at):  # rule 8
    with ChatServer("Hello, I need something.", "it is fox", f"Thanks! {STOP}") as endpoint:
        user, said = talk(at(endpoint), "Which order?", "Done.")
    assert said == [("Hello, I need something.", False), ("it is fox", False), (f"Thanks! {STOP}", True)]
    assert endpoint.keys == ["Bearer of-the-test"] * 3 and endpoint.requests[0]["path"] == "/v1/chat/completions"
    last = endpoint.requests[-1]["messages"]
    assert [message["role"] for message in last] == ["system", "user", "assistant", "user", "assistant", "user"]
    system = last[0]["content"]
    assert "name ana" in system and "Wish 1: i want to swap. order fox, size big" in system and STOP in system
    assert last[3] == {"role": "user", "content": "Which order?"}
    state = user.snapshot()
    user.restore(state)
    assert user.snapshot() == state and len(state) == 7


def test_a_chat_user_of_anthropic(at):  # rule 8
    skip_without("anthropic")
    with ChatServer("Hello.", "it is fox") as endpoint:
        _, said = talk(at(endpoint) | {"style": "anthropic"}, "Which order?")
    assert [one.text for one in said] == ["Hello.", "it is fox"]
    assert endpoint.requests[0]["path"] == "/v1/messages" and "of-the-test" in endpoint.keys[0]
    last = endpoint.requests[-1]
    assert "name ana" in last["system"] and [one["role"] for one in last["messages"]] == ["user", "assistant", "user"]


def test_errors_are_tried_again(at):  # rule 8
    with ChatServer(500, "hello") as endpoint:
        _, said = talk(at(endpoint) | {"retries": 1})
    assert said[0].text == "hello" and len(endpoint.requests) == 2


@pytest.mark.parametrize(
    ("answer", "what"), [(500, "InternalServerError"), (401, "AuthenticationError"), (1.0, "Timeout"), (" ", "empty")]
)
def test_failures_are_those_of_the_environment(at, answer, what):  # rule 8
    with ChatServer(answer) as endpoint, pytest.raises(EpisodeFailure, match=what) as caught:
        talk(at(endpoint) | {"timeout_s": 0.2 if what == "Timeout" else 30.0})  # on a busy machine others take time too
    assert caught.value.boundary == "environment" and "$USER_URL" in caught.value.remedy


def test_nobody_listens(at):  # rule 8
    with ChatServer("x") as endpoint:
        settings = at(endpoint)
    with pytest.raises(EpisodeFailure, match="Connection"):
        talk(settings)


@pytest.mark.parametrize("missing", ["USER_URL", "USER_KEY"])
def test_addresses_and_keys_come_from_outside(at, monkeypatch, missing):  # rule 8
    with ChatServer("x") as endpoint:
        settings = at(endpoint)
    monkeypatch.delenv(missing)
    with pytest.raises(RecipeError, match=f"{missing} is empty(.|\n)*export {missing}"):
        ChatUser(ChatSettings(**settings))


def test_a_desk_with_a_chat_user(at):  # rule 9
    with ChatServer("hello", "i am ana", f"bye {STOP}") as endpoint:

        async def run():
            env = Desk(user="chat", chat=at(endpoint), replies="free", format="json")
            assert asyncio.iscoroutinefunction(env.step) and not asyncio.iscoroutinefunction(Desk().step)
            task = env.tasks("train", 1, 0)[0]
            first = await env.reset(task)
            with told(ContractError, "chat model"):
                env.expert("agent")
            called = await env.step({"agent": Action(text='{"name": "get_order", "arguments": {"order": "x"}}')})
            second = await env.step({"agent": Action(text="Who are you?")})
            last = await env.step({"agent": Action(text="It is done.")})
            await env.close()
            return first, called, second, last

        first, called, second, last = asyncio.run(run())
    assert first.observations["agent"].text.endswith("user: hello")
    assert called.info["tool_error"] == {"agent": 1.0} and len(endpoint.requests) == 3  # calls ask nobody
    assert second.observations["agent"].text.endswith("user: i am ana")
    assert last.terminated == {"agent"} and last.info["success"] is False
