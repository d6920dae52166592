"""What must hold of `webforms` written as HTML: (1) the text has every control and is escaped; (2) in a real browser
the expert's gestures lead to the same screen and values as in Python, for every kind of site.
"""

from __future__ import annotations

import pytest

from palaestra.data import Task
from palaestra.envs.adapters.miniwob.browser import Browser
from palaestra.envs.kit.elements import read
from palaestra.envs.worlds.webforms.html import page, write_page
from palaestra.envs.worlds.webforms.play import look
from palaestra.envs.worlds.webforms.sites import KINDS, asked
from palaestra.envs.worlds.webforms.world import WebForms
from tests.extras import needs

pytestmark = needs("selenium")
USER = "user"
TELL = "arguments[arguments.length - 1](palaestraState());"
ROWS = 99  # all in view: a browser scrolls on its own
DO = """const [label, kind, text] = arguments, done = arguments[arguments.length - 1];
const seen = Array.from(document.querySelectorAll('.row')).filter(row => row.style.display !== 'none');
const row = seen[label - 1], target = row.querySelector('input, button, a') || row;
if (kind === 'click') target.click();
else { target.value = text; target.dispatchEvent(new Event('input')); }
done(palaestraState());"""


@pytest.fixture(scope="module")
def browser():
    made = Browser()
    yield made
    made.close()


def test_the_text_is_whole():  # rule 1
    env = WebForms(kinds=("form",), rows=ROWS)
    env.reset(Task(env="webforms", seed=1))
    now = env.snapshot()
    text = page(now.site, now.state, asked(now.site, (("name", "</script>"),)), renamed=True)
    assert text.count('class="row"') == len(now.site.controls) and "</script>" not in text.partition("<script>")[0]
    assert all(control.other in text for control in now.site.controls)


@needs("browser")
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_happens_in_a_browser(kind, browser, tmp_path):  # rule 2
    env = WebForms(kinds=(kind,), rows=ROWS, distractors=(6, 6))
    result = env.reset(Task(env="webforms", seed=3))
    now = env.snapshot()
    write_page(tmp_path / "page.html", now.site, now.state, now.goal)
    browser.open((tmp_path / "page.html").as_uri())
    while result.observations:
        state = env.snapshot().state
        assert browser.run(TELL) == {"screen": state.screen, "values": [*state.values]}
        action = env.expert(USER)
        gesture = read(action.text)
        if gesture.kind in ("click", "type"):
            assert gesture.id <= len(look(now.site, state, rows=ROWS, renamed=False).elements)
            browser.run(DO, gesture.id, gesture.kind, gesture.text)
        result = env.step({USER: action})
    assert result.info["success"]
