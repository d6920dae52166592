"""What must hold of a policy that reads images:

1. An image becomes the ids that the model's own processor gives, also of several sizes and in several turns.
2. The strings of image tokens in texts stay text. 3. The engine's log-probabilities are those of the model's own pass.
4. The trainer's are the same, with and without images in one batch, in new segments, and after a cut.
5. Prompts with equal ids and different images share nothing; equal images are computed once, also after a fork.
6. A small memory, new weights and small passes change nothing.
7. Without a reader, images are left out if there is a text; an image alone is refused with the reason.
8. Low-rank additions leave the tower alone, unless targets name it. 9. A saved policy reads images again.
10. Contexts that put turns together themselves are refused, and so are other engines and processors that lack a part.
11. A tower whose numbers differ is refused at the start. 12. The tower is trained with all weights.
13. The policy `endpoint` sends an image as a PNG file, if it is told to; an image alone is refused otherwise.
14. Images inside of messages stand where the message has them, one or several, and are refused where nobody reads them.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from palaestra.chat import FullHistory, LatestOnly, Window
from palaestra.chat.places import PLACE
from palaestra.data import Action, Observation, RunSetup, Step, Task, Trajectory
from palaestra.data.protocols import Request, Sampling
from palaestra.data.table import rows_of
from palaestra.engines import InProcessEngine
from palaestra.engines.remote import RemoteEngine
from palaestra.errors import ContractError, EpisodeFailure, PalaestraError, RecipeError
from palaestra.models.pictures import NoPictures, PictureReader, own_inputs
from palaestra.policies.endpoint import EndpointSession
from palaestra.policies.language import LanguagePolicy
from palaestra.policies.sequences import collate, pictures_of
from palaestra.testing import TinyModel
from tests.messages import told
from tests.vision import FAMILIES, Family, some_image, vision_folder

Made = Callable[..., Any]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("vision")
    made = {family: vision_folder(place / family, family) for family in FAMILIES}
    return {**made, "split": vision_folder(place / "split", "smolvlm", splits=True)}


def policy_of(folder: Path, engine: dict[str, Any] | None = None, **options: Any) -> Any:
    policy: Any = LanguagePolicy("p", RunSetup(seed=0), model=str(folder), **options).as_trained()
    policy.engine = InProcessEngine(models={"p": policy.model}, **(engine or {}))
    return policy


def seen(number: int, text: str | None = "what do you see?", size: tuple[int, int] = (12, 12)) -> Observation:
    return Observation(text=text, image=some_image(number, *size))


def play(policy: Any, observations: list[Observation], *, context: Any = None, key: str = "s", seed: int = 0) -> Any:
    """A trajectory of these observations, with sampled replies."""
    steps: list[Step] = []

    async def episode() -> None:
        session = policy.session(context=context, sampling=Sampling(max_tokens=6), key=key)
        for turn, observation in enumerate(observations):
            said = await session.act(observation, seed=seed + turn)
            steps.append(
                Step(
                    agent="a",
                    turn=turn,
                    observation=observation,
                    action=said.action,
                    prompt=said.prompt,
                    pictures=said.pictures,
                    segment=said.segment,
                )
            )
        session.end(None)

    asyncio.run(episode())
    return Trajectory(task=Task(env="e", seed=0), group=key, steps=steps)


def own_logprobs(policy: Any, trajectory: Trajectory, segment: int = 0) -> np.ndarray:
    """Log-probabilities of a segment's response tokens, by the model's own pass over the whole segment."""
    ids = trajectory.sequence("a", segment)
    steps = [step for step in trajectory.steps if step.segment == segment]
    pictures = pictures_of(trajectory, steps[-1])
    own = own_inputs(policy.model, policy.renderer.pictures, ids, pictures)
    with torch.no_grad():
        logits = policy.model(input_ids=torch.from_numpy(ids).long()[None], **own).logits[0]
    chosen = logits.log_softmax(-1)[:-1].gather(1, torch.from_numpy(ids).long()[1:, None])[:, 0].numpy()
    found, start = [], 0
    for step in steps:
        start += len(step.prompt)
        found.append(chosen[start - 1 : start - 1 + len(step.action.tokens)])
        start += len(step.action.tokens)
    return np.concatenate(found)


def sampled_logprobs(trajectory: Trajectory, segment: int = 0) -> np.ndarray:
    return np.concatenate([step.action.logprobs for step in trajectory.steps if step.segment == segment])


# ---- prompts ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize("family", ["llava", "split"])
def test_1_the_ids_of_the_processor(family: str, folders: dict[str, Path]) -> None:
    policy = policy_of(folders[family])
    sizes = [(12, 12), (40, 20), (9, 33)]
    observations = [seen(number, size=size) for number, size in enumerate(sizes)]
    reader = policy.renderer.pictures
    for observation in observations:
        prompt = FullHistory().start(policy.renderer).observe(observation)
        message = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": observation.text}]}
        text = policy.tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
        expected = reader._processor(text=[text], images=[[some_opened(observation.image)]])["input_ids"][0]
        assert prompt.ids.tolist() == expected
        (picture,) = prompt.pictures
        assert (prompt.ids == reader.token_id).sum() == picture.count
        assert prompt.ids[[picture.start, picture.stop - 1]].tolist() == [reader.token_id] * 2
    if family == "split":  # the number of ids depends on the shape
        counts = [reader.read(observation.image).count for observation in observations]
        assert counts == [20, 12, 12]  # four or two parts, and the whole


@pytest.mark.parametrize("family", FAMILIES)
def test_14_images_inside_of_messages(family: Family, folders: dict[str, Path]) -> None:
    policy = policy_of(folders[family])
    reader = policy.renderer.pictures
    two = (some_image(1), some_image(2))
    content = f"answer {PLACE} or {PLACE} what?"
    talk = FullHistory().start(policy.renderer)
    prompt = talk.observe(Observation(messages=[{"role": "user", "content": content, "pictures": two}]))
    parts = [
        {"type": "text", "text": "answer "},
        {"type": "image"},
        {"type": "text", "text": " or "},
        {"type": "image"},
    ]
    message = {"role": "user", "content": [*parts, {"type": "text", "text": " what?"}]}
    text = policy.tokenizer.apply_chat_template([message], tokenize=False, add_generation_prompt=True)
    expected = reader._processor(text=[text], images=[[some_opened(one) for one in two]])["input_ids"][0]
    assert prompt.ids.tolist() == list(expected)
    assert [np.array_equal(one.image, given) for one, given in zip(prompt.pictures, two, strict=True)] == [True, True]
    first = [{"role": "user", "content": "look", "pictures": two[:1]}]  # without a place: before the text
    alone = FullHistory().start(policy.renderer).observe(Observation(messages=first))
    assert alone.ids.tolist() == FullHistory().start(policy.renderer).observe(seen(1, "look")).ids.tolist()
    played = play(policy, [Observation(messages=first), seen(2), Observation(messages=first)])
    assert [len(step.pictures) for step in played.steps] == [1, 1, 1]
    np.testing.assert_allclose(sampled_logprobs(played), own_logprobs(policy, played), atol=1e-4)


def test_14_where_nobody_reads_them(folders: dict[str, Path]) -> None:
    off, plain = policy_of(folders["llava"], pictures=False), TinyModel()
    shown = Observation(messages=[{"role": "user", "content": "look", "pictures": (some_image(1),)}])
    single = Observation(messages=[{"role": "user", "content": "look"}], image=some_image(1))
    for policy in (off, plain):
        for observation in (shown, single):
            with told(EpisodeFailure, "has images in its messages"):
                FullHistory().start(policy.renderer).observe(observation)


def some_opened(image: np.ndarray) -> Any:
    return Image.fromarray(image)


def test_1_the_processor_of_transformers(folders: dict[str, Path]) -> None:
    reader = policy_of(folders["llava"]).renderer.pictures
    own = AutoProcessor.from_pretrained(folders["llava"], backend="pil")
    made = own(text=["<image>"], images=[some_opened(some_image(3))], return_tensors="pt")
    assert torch.equal(made["pixel_values"], reader.read(some_image(3)).inputs["pixel_values"])


@pytest.mark.parametrize("family", FAMILIES)
def test_2_forged_images_stay_text(family: Family, folders: dict[str, Path]) -> None:
    policy = policy_of(folders[family])
    reader = policy.renderer.pictures
    forged = f"{reader.token} {reader.mark}{reader.mark} <image> <|image_pad|>"
    talk = FullHistory().start(policy.renderer)
    first = talk.observe(Observation(text=forged))
    assert first.pictures == () and reader.token_id not in first.ids
    talk.respond(policy.renderer.action(forged))
    then = talk.observe(seen(1, forged))
    assert len(then.pictures) == 1 and (then.ids == reader.token_id).sum() == then.pictures[0].count
    assert forged in policy.tokenizer.decode(then.ids)


@pytest.mark.parametrize("family", FAMILIES)
def test_2_a_sampled_image_token_is_no_image(family: Family, folders: dict[str, Path]) -> None:
    policy = policy_of(folders[family])
    token = policy.renderer.pictures.token_id
    session = policy.session(context=None, sampling=Sampling(), key="s")
    first = session.record(seen(0), Action(text="x"))
    session = policy.session(context=None, sampling=Sampling(max_tokens=4), key="t")
    replayed = session.replay(seen(0), Action(text="x", tokens=np.array([token, *first.action.tokens], np.int32)))
    said = asyncio.run(session.act(seen(1), seed=0))
    steps = [
        Step(agent="a", turn=t, observation=seen(t), action=one.action, prompt=one.prompt, pictures=one.pictures)
        for t, one in enumerate((replayed, said))
    ]
    steps[0].action.logprobs = np.zeros(len(steps[0].action.tokens), np.float32)
    trajectory = Trajectory(task=Task(env="e", seed=0), group="g", steps=steps)
    with torch.no_grad():
        samples = policy.collate(rows_of([trajectory]), temperature=1.0)
        trained = policy.forward(samples, [0], ("logprob",))["logprob"].numpy()
    assert np.abs(trained[-len(said.action.tokens) :] - said.action.logprobs).max() < 1e-4


# ---- engine and trainer -----------------------------------------------------------------------------------
@pytest.mark.parametrize("family", [*FAMILIES, "split"])
def test_3_several_turns(family: str, folders: dict[str, Path]) -> None:
    policy = policy_of(folders[family])
    turns = [seen(0, size=(40, 24)), Observation(text="and now?"), seen(1), seen(2, None)]
    played = play(policy, turns)
    assert [len(step.pictures) for step in played.steps] == [1, 0, 1, 1]
    assert {step.segment for step in played.steps} == {0}
    assert np.abs(own_logprobs(policy, played) - sampled_logprobs(played)).max() < 1e-5
    assert all(picture.inputs is None for step in played.steps for picture in step.pictures)


@pytest.mark.parametrize("family", FAMILIES)
def test_4_the_trainer(family: Family, folders: dict[str, Path]) -> None:
    policy = policy_of(folders[family], value_head=True)
    episodes = [
        play(policy, [seen(0), seen(1)], key="0"),
        play(policy, [Observation(text="hello"), Observation(text="again")], key="1"),
        play(policy, [seen(0), Observation(text="more"), seen(0, size=(20, 20))], key="2"),
        play(policy, [seen(3), seen(4), seen(5)], key="3", context=Window(turns=2)),
        play(policy, [seen(3), seen(4)], key="4", context=LatestOnly()),
    ]
    samples = policy.collate(rows_of(episodes), temperature=1.0)
    assert samples.beginnings is None  # nothing is packed
    with torch.no_grad():
        trained = policy.forward(samples, range(len(samples.ids)), ("logprob",))["logprob"].numpy()
    segments = [(one, n) for one in episodes for n in sorted({step.segment for step in one.steps})]
    sampled = np.concatenate([sampled_logprobs(one, n) for one, n in segments])
    assert np.abs(trained - sampled).max() < 1e-4
    assert len(segments) > 6  # windows begin new segments, which show the images of the turns that they keep
    new = next(step for step in episodes[3].steps if step.segment == 1)
    assert len(new.pictures) == 2
    blind = [replace(one, steps=[replace(step, pictures=()) for step in one.steps]) for one in episodes]
    with torch.no_grad():
        other = policy.forward(policy.collate(rows_of(blind), temperature=1.0), [0], ("logprob",))["logprob"]
    assert np.abs(other.numpy() - sampled[: len(other)]).max() > 1e-2  # images matter


def test_4_after_a_cut(folders: dict[str, Path]) -> None:
    policy = policy_of(folders["smolvlm"], value_head=True)
    played = play(policy, [seen(0), seen(1)])
    session = policy.session(context=None, sampling=Sampling(), key="cut")
    for step in played.steps:
        session.replay(step.observation, step.action)
    prompt = session.end(seen(2))
    assert len(prompt.pictures) == 1
    played.next_prompts["a"], played.steps[-1].truncated = prompt, True
    rows = rows_of([played])
    samples = policy.collate(rows, temperature=1.0)
    assert len(samples.pictures[0]) == 3
    with torch.no_grad():
        whole = policy.forward(samples, [0], ("logprob", "value", "bootstrap_value"))
    assert torch.isfinite(whole.bootstrap_value).all()
    shorter = collate(rows, temperature=1.0, limit=len(samples.ids[0]) - 12, reader=policy.renderer.pictures)
    assert len(shorter.ids[0]) == len(samples.ids[0]) - 12
    with torch.no_grad():  # an image whose ids are cut off
        policy.forward(shorter, [0], ("logprob",))


def test_5_equal_ids_and_other_images(folders: dict[str, Path]) -> None:
    policy = policy_of(folders["smolvlm"])
    long = "which color is most frequent? " * 30  # several blocks
    towers = counted(policy)
    first, second, third = (play(policy, [seen(n, long)], key=str(place)) for place, n in enumerate((0, 1, 0)))
    assert first.steps[0].prompt.tolist() == second.steps[0].prompt.tolist()
    assert not np.allclose(first.steps[0].action.logprobs[0], second.steps[0].action.logprobs[0])
    assert np.array_equal(first.steps[0].action.logprobs, third.steps[0].action.logprobs)
    assert len(towers) == 2  # the third episode shows the image of the first one
    assert policy.engine.statistics.shared_tokens >= len(first.steps[0].prompt) - 1
    assert np.abs(own_logprobs(policy, second) - sampled_logprobs(second)).max() < 1e-5


def counted(policy: Any) -> list[int]:
    """Counts the calls of the vision tower."""
    calls: list[int] = []
    base = policy.model.base_model
    plain = base.get_image_features

    def count(*args: Any, **named: Any) -> Any:
        calls.append(1)
        return plain(*args, **named)

    base.get_image_features = count
    return calls


def test_5_together_and_forked(folders: dict[str, Path]) -> None:
    policy = policy_of(folders["qwen2_vl"])
    alone = [play(policy, [seen(n), seen(n + 1)], key=str(n)) for n in range(3)]

    async def together() -> list[Any]:
        async def one(number: int) -> list[Any]:
            session = policy.session(context=None, sampling=Sampling(max_tokens=6), key=("t", number))
            first = await session.act(seen(number), seed=0)
            fork = session.fork(("f", number))
            return [first, await session.act(seen(number + 1), seed=1), await fork.act(seen(number + 1), seed=1)]

        return list(await asyncio.gather(*map(one, range(3))))

    for played, (first, second, forked) in zip(alone, asyncio.run(together()), strict=True):
        assert first.action.tokens.tolist() == played.steps[0].action.tokens.tolist()
        for said in (second, forked):
            assert said.action.tokens.tolist() == played.steps[1].action.tokens.tolist()
            assert np.array_equal(said.action.logprobs, played.steps[1].action.logprobs)


@pytest.mark.parametrize("family", FAMILIES)
def test_6_memory_and_passes(family: Family, folders: dict[str, Path]) -> None:
    turns = [seen(0, "which color? " * 20), seen(1, size=(20, 20)), Observation(text="answer red " * 10), seen(2)]
    expected = play(policy_of(folders[family]), turns)
    small = policy_of(folders[family], {"max_sessions": 1, "chunk_tokens": 64})

    async def both() -> list[list[np.ndarray]]:
        async def one(key: str) -> list[np.ndarray]:
            session = small.session(context=None, sampling=Sampling(max_tokens=6), key=key)
            found = []
            for turn, observation in enumerate(turns):
                found.append((await session.act(observation, seed=turn)).action.logprobs)
                if key == "x" and turn == 1:
                    small.engine.publish("p", small.trained_tensors(), 1)  # equal weights: all is computed again
            return found

        return list(await asyncio.gather(*map(one, "xy")))

    for found in asyncio.run(both()):
        assert np.abs(np.concatenate(found) - sampled_logprobs(expected)).max() < 1e-5
    assert small.engine.statistics.evictions > 0


# ---- what is refused --------------------------------------------------------------------------------------
def test_7_without_a_reader(folders: dict[str, Path], tmp_path: Path) -> None:
    off, plain = policy_of(folders["llava"], pictures=False), TinyModel()
    for policy in (off, plain):
        talk = FullHistory().start(policy.renderer)
        with_image, without = talk.observe(seen(0)), FullHistory().start(policy.renderer).observe(Observation(text="x"))
        assert with_image.pictures == () and len(without.ids)
    words = FullHistory().start(off.renderer).observe(Observation(text="what do you see?"))
    assert FullHistory().start(off.renderer).observe(seen(0)).ids.tolist() == words.ids.tolist()
    for policy, reason in ((off, "`pictures` of the policy is false"), (plain, "the model reads no pictures")):
        with told(EpisodeFailure, reason):
            FullHistory().start(policy.renderer).observe(seen(0, None))
    plain.save(str(tmp_path))
    with told(RecipeError, "LlamaForCausalLM reads no pictures"):
        LanguagePolicy("p", RunSetup(seed=0), model=str(tmp_path), pictures=True)
    assert policy_of(tmp_path).renderer.blind == "LlamaForCausalLM reads no pictures"


def both_directions(self: Any, input_ids: Any, token_type_ids: Any) -> None:
    """The arguments by which Gemma 3 and PaliGemma learn which tokens are of an image."""


def test_7_reasons(folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = vision_folder(tmp_path, "smolvlm")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.jinja").write_text(template.replace("<image>", ""))
    with told(RecipeError, "the chat template writes no images"):
        policy_of(folder, pictures=True)
    (folder / "chat_template.jinja").write_text(template)
    (folder / "preprocessor_config.json").unlink()
    with told(RecipeError, "image processor"):
        policy_of(folder, pictures=True)
    policy_of(folder).check_numbers()  # it still reads texts
    with told(RecipeError, "packing"):
        policy_of(folders["llava"], packing=True)
    policy = policy_of(folders["llava"])
    policy.model.config.vision_config.deepstack_visual_indexes = [1]  # as Qwen3-VL
    with pytest.raises(NoPictures, match="adds pictures to its layers"):
        PictureReader(str(folders["llava"]), policy.tokenizer, policy.model)
    monkeypatch.setattr(type(policy.model.base_model), "forward", both_directions)
    with pytest.raises(NoPictures, match="in both directions"):
        PictureReader(str(folders["llava"]), policy.tokenizer, policy.model)
    monkeypatch.undo()
    with told(EpisodeFailure, "2 channels"):
        reader = policy_of(folders["llava"]).renderer.pictures
        reader.read(np.zeros((4, 4, 2), np.uint8))
    assert reader.read(np.zeros((4, 4, 1), np.uint8)).count == reader.read(np.zeros((4, 4, 4), np.uint8)).count


def test_8_additions(folders: dict[str, Path]) -> None:
    policy = policy_of(folders["llava"], lora={"rank": 2})
    assert policy.module.additions and all("language_model" in name for name in policy.module.additions)
    named = policy_of(folders["llava"], lora={"rank": 2, "targets": ["vision_tower.encoder.layers.0.mlp.fc1"]})
    assert [name for name in named.module.additions if "vision" in name] == list(named.module.additions)
    named.check_numbers()
    with torch.no_grad():
        for addition in policy.module.additions.values():
            addition.b.weight.add_(0.1)
    policy.weights_changed(1)
    played = play(policy, [seen(0), seen(1)])
    with torch.no_grad():
        samples = policy.collate(rows_of([played]), temperature=1.0)
        trained = policy.forward(samples, [0], ("logprob",))["logprob"].numpy()
    assert np.abs(trained - sampled_logprobs(played)).max() < 1e-4


def test_9_saved(folders: dict[str, Path], tmp_path: Path) -> None:
    policy = policy_of(folders["smolvlm"])
    policy.save(str(tmp_path))
    again = policy_of(tmp_path, pictures=True)
    assert again.architecture() == policy.architecture()
    turns = [seen(0), seen(1)]
    assert np.array_equal(sampled_logprobs(play(policy, turns)), sampled_logprobs(play(again, turns)))


def test_10_contexts_and_engines(folders: dict[str, Path]) -> None:
    policy = policy_of(folders["smolvlm"])

    class Own(LatestOnly):
        def start(self, renderer: Any) -> Any:
            return type("Talk", (), {"length": 0, "observe": None, "respond": None})()

    session = policy.session(context=Own(), sampling=Sampling(), key="s")
    with told(PalaestraError, "context"):
        asyncio.run(session.act(seen(0), seed=0))
    prompt = FullHistory().start(policy.renderer).observe(seen(0))
    request = Request(policy="p", session="s", prompt=prompt.ids, pictures=prompt.pictures, seed=0)
    plain = TinyModel()
    engine = InProcessEngine(models={"p": plain.model})
    with told(ContractError, "the model reads none"):
        asyncio.run(engine.generate(replace(request, prompt=prompt.ids % 200)))
    remote = RemoteEngine.__new__(RemoteEngine)
    with told(PalaestraError, "token ids alone"):
        asyncio.run(remote.generate(request))


def test_11_the_start(folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for family in FAMILIES:
        policy_of(folders[family]).check_numbers()
    policy = policy_of(folders["llava"])
    monkeypatch.setattr("palaestra.policies.language_trainer.picture_inputs", other_inputs)
    with told(ContractError, "after an image"):
        policy.check_numbers()


def test_11_spread_weights(folders: dict[str, Path]) -> None:
    for options in ({}, {"lora": {"rank": 2}}):
        policy = policy_of(folders["llava"], **options)
        with told(RecipeError, "different numbers"):
            policy.train_through(policy.network)


def other_inputs(model: Any, ids: torch.Tensor, pictures: Any) -> dict[str, torch.Tensor]:
    """A trainer that forgets the images."""
    return {"inputs_embeds": model.get_input_embeddings()(ids)}


@pytest.mark.parametrize("recompute", [False, True])
def test_12_gradients(recompute: bool, folders: dict[str, Path]) -> None:
    policy = policy_of(folders["smolvlm"], recompute=recompute)
    played = [play(policy, [seen(0)], key="0"), play(policy, [seen(0), seen(1)], key="1")]
    samples = policy.collate(rows_of(played), temperature=1.0)
    policy.forward(samples, range(2), ("logprob",))["logprob"].sum().backward()
    parts = ("vision_model.encoder.layers.0", "connector", "text_model.layers.0")
    gradients = {name: p.grad for name, p in policy.model.named_parameters()}
    for part in parts:
        assert all(g is not None and g.abs().sum() > 0 for n, g in gradients.items() if part in n and "weight" in n)


def test_13_endpoints() -> None:
    def session(sends: bool) -> EndpointSession:
        policy: Any = SimpleNamespace(name="far", sends_pictures=sends)
        return EndpointSession(policy, Sampling(), latest_only=False)

    talk = session(True)
    talk.record(seen(0), Action(text="red"))
    talk.record(seen(1, None), Action(text="blue"))
    first, _, second, _ = talk.messages
    assert [part["type"] for part in first["content"]] == ["image_url", "text"]
    assert [part["type"] for part in second["content"]] == ["image_url"]
    head, _, data = second["content"][0]["image_url"]["url"].partition(",")
    assert head == "data:image/png;base64"
    assert (np.asarray(Image.open(BytesIO(base64.b64decode(data)))) == some_image(1)).all()
    blind = session(False)
    blind.record(seen(0), Action(text="red"))
    assert blind.messages[0]["content"] == "what do you see?"
    with told(EpisodeFailure, "sends no images"):
        blind.record(seen(1, None), Action(text="blue"))
