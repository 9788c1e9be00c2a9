"""``eyas serve``. Its flags are the settings' own fields, so that a default and a meaning are written once."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import typer

from eyas.cli.app import app
from eyas.cli.options import Json
from eyas.config import Settings
from eyas.serve.flags import Flag, flags_of
from eyas.serve.foreign import refuse
from eyas.serve.limits import Limits
from eyas.serve.settings import LIMIT_PREFIX, ServeSettings

SWITCHES_OFF = ("speculative_adaptive",)
"""Switches that can also be given as ``--no-…``: they are on, or chosen, without being asked for."""
Config = Annotated[
    Path | None, typer.Option("--config", help="A YAML file of the same names; flags on the command line win.")
]
Explain = Annotated[
    bool, typer.Option("--explain", help="Print every effective value and where it came from, and end.")
]


def _serve(ctx: typer.Context, config: Config, explain: Explain, as_json: Json, **flags: Any) -> None:
    """Serve a model over OpenAI's API, by default with its draft: the text is the target's, and K what pays.

    Flags are SGLang's where SGLang has the thing. What is asked is run, or the server does not start.
    """
    from eyas.cli.serving import serve

    if ctx.args:
        raise refuse(ctx.args[0], [name for parameter in ctx.command.params for name in parameter.opts])
    given = {name: _plain(value) for name, value in flags.items() if value is not None}
    serve(given, config, explain, as_json)


def _plain(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _signature() -> inspect.Signature:
    parameters = [_parameter("ctx", typer.Context, inspect.Parameter.empty)]
    parameters += [_option(name, kind, flag, ServeSettings) for name, (kind, flag) in flags_of(ServeSettings).items()]
    for name, (kind, flag) in flags_of(Limits).items():
        parameters.append(_option(name, kind, flag, Limits, LIMIT_PREFIX))
    parameters += [_parameter(n, a, d) for n, a, d in (("config", Config, None), ("explain", Explain, False))]
    return inspect.Signature([*parameters, _parameter("as_json", Json, False)])


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


def _option(name: str, annotation: Any, flag: Flag, settings: type[Settings], prefix: str = "") -> inspect.Parameter:
    """None stands for not given, so that its origin is known."""
    kind, dashed = _kind(annotation), f"{prefix}{name}".replace("_", "-")
    names = [f"--{dashed}", *flag.aliases]
    if kind is bool:
        names = [f"--{dashed}/--no-{dashed}" if name in SWITCHES_OFF else f"--{dashed}"]
    default = settings.model_fields[name].default
    shown = f" [{default}]" if kind is not bool and default not in (None, ()) else ""
    option = typer.Option(*names, help=flag.help + shown.replace("[", "\\["), rich_help_panel=flag.panel)
    wanted: Any = list[str] if kind is tuple else kind
    return _parameter(prefix + name, Annotated[wanted | None, option], None)


def _kind(annotation: Any) -> type:
    """The plain type that a field takes on the command line."""
    origin = get_origin(annotation)
    if origin is Annotated or origin in (Union, UnionType):
        return _kind(next(part for part in get_args(annotation) if part is not type(None)))
    if origin is tuple:
        return tuple
    # What a text may be is checked, and listed, by the settings.
    return annotation if annotation in (bool, int, float, Path) else str


_serve.__signature__ = _signature()  # type: ignore[attr-defined]
_serve.__annotations__ = {}
# Flags of other engines must come through, to be refused with what to do instead.
app.command("serve", context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(_serve)
