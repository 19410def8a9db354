"""Shared state: user and agent work on one recipe. Both change it, and the model is told how it stands.

.venv/bin/agent-server serve --agent examples/agents/shared_state.py:agent
"""

from typing import Literal

from pydantic import BaseModel

from agent_server import Agent, ToolContext, tool


class Ingredient(BaseModel):
    icon: str = "🥣"
    name: str
    amount: str = ""


class Recipe(BaseModel):
    title: str = "A new recipe"
    skill_level: Literal["Beginner", "Intermediate", "Advanced"] = "Beginner"
    cooking_time: str = "30 min"
    special_preferences: list[str] = []
    ingredients: list[Ingredient] = []
    instructions: list[str] = []


class Kitchen(BaseModel):
    recipe: Recipe = Recipe()


@tool
def generate_recipe(recipe: Recipe, context: ToolContext) -> str:
    """Replace the recipe by a better one.

    Args:
        recipe: the whole recipe, with what the user already had in it
    """
    context.state["recipe"] = recipe.model_dump()
    return f"The recipe is now {recipe.title}."


agent = Agent(
    name="shared_state",
    description="Improves the recipe on the page.",
    instructions="Improve the recipe in the shared state with generate_recipe, then say what you changed.",
    tools=[generate_recipe],
    state=Kitchen,
    state_in_prompt=True,
)
