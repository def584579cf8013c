"""Pages in one file: nothing is loaded, every name is escaped, no script runs but the page's own.

A page is a template that extends base.html.j2, with a style sheet and perhaps a script beside it:

    render(Path(__file__).with_name("page.html.j2"), page=page)      # page.css, page.js

The content security policy names style and script by their digests. So whatever a name in the
data managed to become, the browser would not run it.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retape._text import printable

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Card:
    """A figure at the top of a page."""

    label: str
    figure: str
    text: str
    tone: str  # "good", "bad", "loud", "quiet"


def render(template: Path, **data: Any) -> str:
    import jinja2
    from markupsafe import Markup

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        loader=jinja2.FileSystemLoader([template.parent, _HERE]),
        finalize=_without_control_characters,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    style = "\n" + _read(_HERE / "base.css") + _read(template.parent / "page.css")
    script = _read(template.parent / "page.js")
    return environment.get_template(template.name).render(
        style=Markup(style),
        script=Markup(script),
        security_policy=Markup(_security_policy(style, script)),
        **data,
    )


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _security_policy(style: str, script: str) -> str:
    rules = ["default-src 'none'", f"style-src {_digest(style)}"]
    if script:
        rules.append(f"script-src {_digest(script)}")
    return "; ".join([*rules, "base-uri 'none'", "form-action 'none'"])


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _without_control_characters(value: Any) -> Any:
    """What a template is about to print. `Markup` is ours, and comes through as it is."""
    return printable(value, lines=True) if type(value) is str else value
