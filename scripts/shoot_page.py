"""Use the web page as a person does, in headless Chromium, check what it does, and take pictures.

python scripts/shoot_page.py FOLDER           over answers as they are set; status 1 if anything is not as it must be
python scripts/shoot_page.py FILE.png URL     a picture of a running server, after an example prompt

Needs Chromium on PATH.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.request import Request, urlopen

from browser import Browser
from page_server import PageServer

from eyas.serve.wire import Ask

CODE = """Here is a function that counts from the bottom up, so that no value is computed twice:

```python
def fibonacci(n: int) -> int:
    \"\"\"The n-th Fibonacci number, from 0.\"\"\"
    a, b = 0, 1
    for _ in range(n):
        a, b = b, a + b
    return a
```

Two examples:

1. `fibonacci(7)` is **13**.
2. `fibonacci(10)` is **55**.

It takes *n* additions, and two numbers of memory."""
BLUE = """Sunlight holds all colours. Air is made of molecules that are far smaller than a wave of light, and such small
things scatter short waves much more than long ones: the fourth power of the frequency tells by how much. Blue light
therefore reaches your eye from every direction of the sky. Violet would even more so, but the sun sends less of it,
and the eye sees it less well. In the evening the light has come a long way through the air, the blue is scattered out
of it, and what is left is red."""
HOSTILE = """<img src=x onerror="document.title='caught'"> <script>document.title='caught'</script>
[click](javascript:document.title='caught') ![i](https://evil.invalid/x.png) `<b>x</b>` **<i>y</i>**

```html" onload="document.title='caught'
<svg onload="document.title='caught'">
```
| a | b |
|---|---|
"""
SCENES: list[str] = []
QUESTION = "document.getElementById('question').value"
TALK = "document.querySelector('.turn.target:last-of-type .text')"
DONE = "document.querySelector('#stop').hidden && document.querySelectorAll('.under-answer').length"


SAYS = {"next": BLUE}
LONG = 400
"""Tokens of a question that is answered at length."""


def say(ask: Ask) -> str:
    """What is to be said next; a long question has an answer that goes on while others run."""
    return BLUE * 20 if len(ask.prompt) > LONG else SAYS["next"]


def load(url: str) -> None:
    """Another client's request, given up by the server's end at the latest."""
    body = {"messages": [{"role": "user", "content": "x " * LONG}], "max_tokens": 1000, "stream": True}
    request = Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"})
    threading.Thread(target=lambda: urlopen(request).read(), daemon=True).start()


def check(what: str, holds: object) -> None:
    """Note it; the script goes on, so that the pictures show what is wrong."""
    print(f"{'ok   ' if holds else 'WRONG'} {what}")
    if not holds:
        SCENES.append(what)


def ask(page: Browser, text: str, answers: int) -> None:
    """Type a question, send it with Enter, and wait for the end of the answer."""
    page.run("document.getElementById('question').focus()")
    page.type(text)
    page.press("Enter")
    page.wait(f"{DONE} === {answers}")


def say_next(text: str) -> None:
    """Every question is answered with this from now on."""
    SAYS["next"] = text


def talk(page: Browser, folder: Path, server: PageServer) -> None:
    """Wide and light: the empty page, an answer on its way, the finished one, and the comparison."""
    page.size(1360, 850)
    page.wait("document.getElementById('state').textContent === 'ready'")
    time.sleep(1.2)
    page.shoot(folder / "empty-light.png")
    check("the question has the focus", page.run("document.activeElement.id === 'question'"))
    say_next(CODE)
    load(server.url)
    load(server.url)
    time.sleep(4)
    page.type("Write a Python function that returns the n-th Fibonacci number, with two examples.")
    page.press("Enter", shift=True)
    check(
        "Shift+Enter only makes a new line",
        page.run(f"{QUESTION}.endsWith('\\n')") and not page.run("document.querySelectorAll('.turn').length"),
    )
    page.press("Enter")
    page.wait(f"{TALK}?.textContent.includes('range')")
    page.shoot(folder / "streaming-light.png")
    page.wait(f"{DONE} === 1")
    shown = page.run(f"{TALK}.textContent")
    check(
        "code, lists and marks are shown",
        all(part in shown for part in ("def fibonacci(n: int) -> int:", "•" if "•" in CODE else "1.", "n additions")),
    )
    check("no marks are left", not any(mark in shown for mark in ("```", "**", "`fib")))
    classes = page.run(f"[...new Set([...{TALK}.querySelectorAll('.t')].map(t => t.className))].sort()")
    check(f"tokens carry their origins {classes}", {"t o0", "t o1", "t o2", "t o3", "t o4"} <= set(classes))
    page.wait("document.getElementById('length').textContent > '1'")
    time.sleep(1.2)
    page.shoot(folder / "answer-light.png")
    page.run("document.querySelectorAll('.buttons button')[1].click()")
    page.wait("document.querySelector('.compared')")
    words = page.run("document.querySelector('.compared').textContent")
    check(f"plain decoding gives the same: {words}", "the same text" in words)
    drafted, plain = (ask for ask in server.engine.asks if len(ask.prompt) <= LONG)
    check("it was asked the same", (drafted.prompt, drafted.sampling) == (plain.prompt, plain.sampling))
    check("and without drafts", (drafted.speculation, plain.speculation) == (None, "null"))


def figures(page: Browser) -> None:
    """What the side says against what the server says."""
    live = page.run("fetch('/live').then(r => r.json())")
    length = float(page.run("document.getElementById('length').textContent"))
    known = [part["accept_length"] for part in (live["recent"], live["total"]) if part]
    check(f"accept length {length} is the server's", any(abs(length - value) < 0.3 for value in known))
    check("the ceiling is K + 1", page.run("document.getElementById('ceiling').textContent") == "5")
    check(
        "survival has a bar a position, and the contract's mark",
        page.run("['.fill', '.mark-at'].every(part => document.querySelectorAll('#survival ' + part).length === 4)"),
    )
    flags = page.run("document.getElementById('flags').textContent")
    check("flags are shown with their origins", "speculative_num_steps4flag" in flags)


def keys(page: Browser) -> None:
    """Esc stops, / comes back, and the colours can be put away."""
    say_next(BLUE * 4)
    page.run("document.getElementById('question').focus()")
    page.type("Go on and on.")
    page.press("Enter")
    page.wait("document.querySelectorAll('.turn.target:last-of-type .t').length > 20")
    page.press("Escape")
    page.wait("document.querySelector('#stop').hidden")
    check(
        "Esc stops, and says so",
        "stopped" in page.run("document.querySelector('.turn:last-of-type .facts').textContent"),
    )
    page.run("document.activeElement.blur()")
    page.press("/")
    check(
        "/ focuses the question, and writes nothing",
        page.run(f"document.activeElement.id === 'question' && {QUESTION} === ''"),
    )
    ground = "getComputedStyle(document.querySelector('.talk .t.o1')).backgroundImage"
    coloured = page.run(ground)
    page.run("document.getElementById('origins').click()")
    check("the colours can be switched off", page.run(ground) != coloured)
    page.run("document.getElementById('origins').click()")
    page.run("document.getElementById('clear').click()")
    check(
        "Clear empties the talk",
        page.run("document.querySelectorAll('.turn').length === 0 && !document.getElementById('empty').hidden"),
    )


def failing(page: Browser, server: PageServer) -> None:
    """An engine that is gone for a while: its error is shown, and the question can be asked again."""
    ready, server.engine.ready = server.engine.ready, None
    say_next(BLUE)
    page.run("document.getElementById('question').focus()")
    page.type("Are you there?")
    page.press("Enter")
    page.wait("document.querySelector('.error')")
    check(
        "an error is shown with its code",
        page.run("document.querySelector('.error code').textContent") == "server.loading",
    )
    server.engine.ready = ready
    page.problems.clear()  # the browser notes the 503 itself
    page.run("document.querySelector('.again button').click()")
    page.wait(f"{DONE} === 1")
    check("the question is asked again, once", page.run("document.querySelectorAll('.turn').length") == 2)
    page.run("document.getElementById('clear').click()")


def hostile(page: Browser) -> None:
    """An answer full of markup is text, whole and harmless."""
    say_next(HOSTILE)
    ask(page, "Be bad.", 1)
    made = page.run(f"[...{TALK}.querySelectorAll(':not(p, span, code, pre, strong, em, div)')].map(e => e.localName)")
    check(f"no element comes out of an answer {made}", made == [])
    check("nothing of it ran", page.run("document.title") == "Eyas")
    check("its text is all there", "onerror=\"document.title='caught'\"" in page.run(f"{TALK}.textContent"))


def looks(page: Browser, folder: Path) -> None:
    """Dark, by the system and by the button; then a phone."""
    page.run("document.getElementById('clear').click()")
    say_next(CODE)
    page.dark(True)
    ask(page, "Write a Python function that returns the n-th Fibonacci number, with two examples.", 1)
    time.sleep(1.2)
    page.shoot(folder / "answer-dark.png")
    dark = page.run("getComputedStyle(document.body).backgroundColor")
    page.run("document.getElementById('theme').click()")
    check(
        "the theme can be chosen against the system",
        page.run("getComputedStyle(document.body).backgroundColor") != dark,
    )
    page.run("document.getElementById('theme').click(), document.getElementById('theme').click()")
    page.size(390, 844, 2)
    page.shoot(folder / "narrow-dark.png")
    page.dark(False)
    page.run("document.getElementById('open-side').click()")
    time.sleep(0.5)
    page.shoot(folder / "narrow-figures.png")
    page.press("Escape")
    check("Esc closes the figures", not page.run("document.body.classList.contains('side-open')"))
    check("nothing is wider than the phone", page.run("document.documentElement.scrollWidth <= 390"))
    page.run("document.getElementById('clear').click()")
    page.shoot(folder / "narrow-light.png")


def with_key(page: Browser, folder: Path) -> None:
    """A server that asks for a key: the page asks for it, and keeps it in the tab."""
    page.size(1360, 850)
    page.wait("!document.getElementById('key-form').hidden")
    page.shoot(folder / "key-light.png")
    page.run("document.getElementById('key').focus()")
    page.type("right-key")
    page.press("Enter")
    page.wait("document.getElementById('state').textContent === 'ready'")
    ask(page, "Is it right?", 1)
    check(
        "the key is kept in the tab alone",
        page.run("localStorage.getItem('eyas-key') === null && sessionStorage.getItem('eyas-key') === 'right-key'"),
    )


def main(folder: Path) -> int:
    """The exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
        PageServer(say) as server,
        Browser(Path(profile)) as page,
    ):
        page.dark(False)
        page.open(server.url)
        talk(page, folder, server)
        figures(page)
        keys(page)
        failing(page, server)
        hostile(page)
        looks(page, folder)
        check(f"no complaint {page.problems}", page.problems == [])
        with PageServer(say, keys=("right-key",)) as guarded:
            page.open(guarded.url)
            with_key(page, folder)
            foreign = [url for url in page.requested if not url.startswith((server.url, guarded.url, "about:"))]
            check(f"nothing is asked of others {foreign}", foreign == [])
    print(json.dumps({"wrong": SCENES, "pictures": sorted(path.name for path in folder.glob("*.png"))}))
    return 1 if SCENES else 0


def picture(path: Path, url: str) -> int:
    """Of a server that runs, at the end of an answer. The exit status."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile, Browser(Path(profile)) as page:
        page.dark(False)
        page.size(1360, 850)
        page.open(url)
        page.wait("document.getElementById('state').textContent.startsWith('ready')", 120)
        page.run("document.querySelector('#prompts button').click()")
        page.wait(f"{DONE} === 1", 120)
        page.run("document.querySelector('main').scrollTop = 0")
        page.shoot(path)
    return 0


if __name__ == "__main__":
    sys.exit(picture(Path(sys.argv[1]), sys.argv[2]) if len(sys.argv) > 2 else main(Path(sys.argv[1])))
