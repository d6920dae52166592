"""Limits of chat templates: (1) a template that loops without end is refused, at the first message and at a later one,
and in any thread; (2) so is one that makes a value without end; (3) all known templates write the same with and without
limits; (4) a run with such a template ends with one message.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from transformers.utils import chat_template_utils

from palaestra.chat import ChatRenderer, renderer_for, template_limits
from palaestra.chat.render import user
from palaestra.errors import EpisodeFailure
from palaestra.models.causal_lm import make_causal_lm
from palaestra.recipe import load
from palaestra.training.start import train
from tests.chat.templates import NAMES, tokenizer_of, with_template
from tests.messages import told

PLAIN = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>"
LOOPS = {
    "nested": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "condition": "{% for a in range(99999) %}{% for b in range(99999) if false %}{% endfor %}{% endfor %}",
    "macro": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive": "{% for a in [1, 2] recursive %}{% if loop.depth < 60 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}",
    "filter": "{% for a in range(99999) %}{% set b = range(99999)|map('string')|list|length %}{% endfor %}",
    "length": "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = loop.last %}{% endfor %}{% endfor %}",
}
LARGE = {
    "times": "{{ 'a' * 10000000000 }}",
    "list": "{% set a = [1] * 10000000000 %}",
    "power": "{% set a = 10 ** (10 ** 10) %}",
    "product": "{% set n = namespace(a=9) %}{% for i in range(99) %}{% set n.a = n.a * n.a %}{% endfor %}",
    "plus": "{% set n = namespace(a='abc') %}{% for i in range(99) %}{% set n.a = n.a + n.a %}{% endfor %}",
    "join": "{% set n = namespace(a='abc') %}{% for i in range(99) %}{% set n.a = n.a ~ n.a %}{% endfor %}",
    "block": "{% set n = namespace(a='abc') %}{% for i in range(99) %}{% set b %}{{ n.a }}{{ n.a }}{% endset %}"
    "{% set n.a = b %}{% endfor %}",
    "written": "{% set a = 'abcd' * 1000000 %}{% for i in range(9999) %}{{ a }}{% endfor %}",
    "center": "{{ 'a'|center(10000000000) }}",
    "indent": "{{ 'a'|indent(10000000000, true) }}",
    "ljust": "{{ 'a'.ljust(10000000000) }}",
    "format": "{{ '%10000000000d'|format(1) }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "method": "{{ '{:10000000000}'.format(1) }}",
    "replace": "{% set a = 'a' * 9999999 %}{{ a.replace('a', a) }}",
    "filter": "{% set a = 'a' * 9999999 %}{{ (['a', 'b'] * 9999)|join(a) }}",
    "tojson": "{{ {'a': 1}|tojson(indent=10000000000) }}",
    "deep": "{% set n = namespace(a=1) %}{% for i in range(500) %}{% set n.a = [n.a] %}{% endfor %}"
    "{{ n.a|tojson(indent=1000) }}",
    "fields": "{% set a = 'a' * 99999 %}{{ ('{0}' * 9999).format(a) }}",
    "sum": "{{ ([[1]] * 9999)|sum(start=[])|length }}",
    "translate": "{{ ('x' * 3000).translate({120: 'y' * 7900000})|length }}",
    "codec": "{{ ('é' * 20000).encode('punycode')|length }}",
    "bytes": "{{ (1).to_bytes(20000000000, 'big')|length }}",
    "bits": "{{ ('f' * 7900000)|int(0, 16) // 7 > 5 }}",
    "links": "{{ ('http://a.de/' ~ '(' * 2000000)|urlize|length }}",
    "wrapped": "{{ ('a' * 7900000)|wordwrap(1)|length }}",
    "generator": "{{ (range(3000)|map('string')|join('x' * 7900000))|length }}",
    "join of a text": "{{ ('x' * 7900000).join(range(3000)|map('string'))|length }}",
    "letters": "{{ ('a' * 3000)|join('x' * 7900000)|length }}",
    "named": "{{ ('a' * 3000)|replace(new='b' * 7900000, old='a')|length }}",
    "mapped": "{{ ['a' * 3000]|map('replace', new='b' * 7900000, old='a')|join|length }}",
}
WRITTEN = {
    "{{ 'a-b-a'|replace('a', 'c') }}": "c-b-c",
    "{{ ['a', 'b']|join(', ') }}{{ range(3)|map('string')|join('-') }}{{ ', '.join(['x', 'y']) }}": "a, b0-1-2x, y",
    "{{ 'ab'|join('.') }}{{ [1, 2]|join }}{{ [{'n': 1}, {'n': 2}]|join(' ', attribute='n') }}": "a.b121 2",
    "{{ 'ff'|int(0, 16) + '7'|int }}{{ {'encode': 5}['encode'] }}": "2625",
}


def later(source: str) -> str:
    """A template that does this once a dialogue has four messages."""
    return "{% if messages|length > 3 %}" + source + "{% endif %}" + PLAIN


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "SECONDS", 0.5)


@pytest.mark.parametrize("name", LOOPS)
def test_1_at_the_first_message(name: str) -> None:
    with told(EpisodeFailure, "seconds"):
        renderer_for(with_template(LOOPS[name] + PLAIN))


@pytest.mark.parametrize("name", LOOPS)
def test_1_at_a_later_message(name: str) -> None:
    renderer, began = ChatRenderer(with_template(later(LOOPS[name]))), time.process_time()
    dialogue = [user("x"), {"role": "assistant", "content": "y"}] * 2
    with pytest.raises(EpisodeFailure, match="seconds"):
        renderer.written(dialogue)
    assert time.process_time() - began < 5
    assert "x" in renderer.written(dialogue[:3])


def test_1_in_a_thread() -> None:
    renderer, faults = ChatRenderer(with_template(later(LOOPS["nested"]))), []

    def run() -> None:
        try:
            renderer.written([user("x"), {"role": "assistant", "content": "y"}] * 2)
        except EpisodeFailure as failure:
            faults.append(failure)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)
    assert len(faults) == 3


@pytest.mark.parametrize("name", LARGE)
def test_2_values_without_end(name: str) -> None:
    renderer = ChatRenderer(with_template(later(LARGE[name])))
    with told(EpisodeFailure, "chat template"):
        renderer.written([user("x"), {"role": "assistant", "content": "y"}] * 2)


@pytest.mark.parametrize(("source", "text"), WRITTEN.items())
def test_2_other_values(source: str, text: str) -> None:
    assert template_limits.LimitedEnvironment().from_string(source).render() == text


@pytest.mark.parametrize("name", NAMES)
def test_3_known_templates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = tokenizer_of(name)
    dialogue = [user("a % b * 3"), {"role": "assistant", "content": "<think>\nso\n</think>\n\nyes"}, user("é\n" * 40)]
    texts: list[Any] = []
    for environment in (ImmutableSandboxedEnvironment, template_limits.LimitedEnvironment):
        monkeypatch.setattr(chat_template_utils, "ImmutableSandboxedEnvironment", environment)
        chat_template_utils._compile_jinja_template.cache_clear()
        try:
            texts.append(tokenizer.apply_chat_template(dialogue, tokenize=False, add_generation_prompt=True))
        except Exception as error:  # a template may refuse the dialogue
            texts.append(repr(error))
    chat_template_utils._compile_jinja_template.cache_clear()
    assert texts[0] == texts[1]


def test_4_a_run(tmp_path: Any) -> None:
    tokenizer = with_template(later(LOOPS["nested"]))
    tokenizer.save_pretrained(tmp_path / "model")
    make_causal_lm(vocabulary=len(tokenizer), hidden=16, layers=1, heads=2, context=512).save_pretrained(
        tmp_path / "model"
    )
    recipe = {
        "name": "endless",
        "environment": {"echo": {"turns": 3}},
        "policies": {"main": {"policy": {"language": {"model": str(tmp_path / "model")}}}},
        "rollout": {"tasks": 1, "group": 2, "response_tokens": 2},
        "advantage": "grpo",
        "training": {"iterations": 1},
        "evaluation": {"tasks": 1},
        "run": str(tmp_path / "run"),
    }
    loaded = load([recipe])
    with told(Exception, "chat template"):
        train(loaded.settings, recipe=loaded.to_json(), quiet=True)
