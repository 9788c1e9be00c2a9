"""``eyas recipes``: the runs that the package brings, one per target."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from eyas.cli.app import app
from eyas.cli.options import Json

recipes_app = typer.Typer(rich_markup_mode="rich")
app.add_typer(recipes_app, name="recipes")


@recipes_app.callback(invoke_without_command=True)
def recipes(context: typer.Context, as_json: Json = False) -> None:
    """Recipes: one whole run per target, with what it took and gave; all of them if no verb follows."""
    if context.invoked_subcommand is None:
        list_(as_json)


@recipes_app.command("list")
def list_(as_json: Json = False) -> None:
    """Show all recipes of the package with their measured time and accept length."""
    from eyas.recipes import list_recipes, load_recipe

    found = [load_recipe(name) for name in list_recipes()]
    if as_json:
        rows = [recipe.model_dump(mode="json", include={"name", "about", "run", "target"}) for recipe in found]
        print(json.dumps({"recipes": rows}))
        return
    table = Table("name", "target", "time", "accept length", "about")
    for recipe in found:
        table.add_row(recipe.name, recipe.target.source, *_figures(recipe.run), escape(recipe.about))
    Console().print(table)


@recipes_app.command()
def show(
    name: Annotated[str, typer.Argument(help="A recipe of the package, or a .yaml file.")], as_json: Json = False
) -> None:
    """Print a recipe after it was checked: save it, change it, and give the file where a name is asked for."""
    from eyas.recipes import load_recipe, recipe_path

    recipe = load_recipe(name)
    if as_json:
        print(json.dumps(recipe.model_dump(mode="json")))
    else:
        print(recipe_path(name).read_text(encoding="utf-8"), end="")


def _figures(run: Any) -> tuple[str, str]:
    """(time, accept length of the last line, which is the widest) of a header."""
    from eyas.recipes import NOT_RUN

    if run == NOT_RUN:
        return NOT_RUN, "–"
    hours = "not timed" if run.hours is None else f"{run.hours:.1f} hours"
    if not run.accept_lengths:
        return hours, "–"
    last = run.accept_lengths[-1]
    return hours, f"{last.accept_length:.2f} of {last.ceiling} (K = {last.num_steps}, temperature {last.temperature:g})"
