"""A small world of templated chats for the tiny trained pair: low entropy, but not without choice."""

from __future__ import annotations

import random
from collections.abc import Callable

ANIMALS = {
    "fox": ("forest", "red", "berries", "run fast"),
    "owl": ("old tower", "grey", "mice", "see at night"),
    "whale": ("deep sea", "blue", "small fish", "dive for an hour"),
    "bear": ("mountains", "brown", "honey", "climb a tree"),
    "camel": ("desert", "yellow", "dry grass", "live without water"),
    "penguin": ("cold south", "black and white", "fish", "swim very well"),
    "frog": ("green pond", "green", "flies", "jump far"),
    "horse": ("wide meadow", "dark brown", "fresh grass", "carry a rider"),
}
DISHES = {
    "bread": ("flour", "water", "salt", 40),
    "soup": ("carrots", "onions", "water", 30),
    "salad": ("tomatoes", "cheese", "oil", 5),
    "pancakes": ("flour", "milk", "eggs", 10),
    "tea": ("leaves", "water", "lemon", 4),
    "rice": ("rice", "water", "butter", 20),
}
NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix")
PLACES = ("river", "market", "school", "station", "garden")
TIMES = ("morning", "evening", "day", "winter")

Chat = tuple[str, str]
"""(what the user says, the answer)"""


def animal(r: random.Random) -> Chat:
    name, (home, colour, food, skill) = r.choice(list(ANIMALS.items()))
    asked = r.choice([f"Tell me about the {name}.", f"What is a {name}?", f"Where does the {name} live?"])
    sentences = [f"Every {r.choice(TIMES)}, it looks for {food}.", f"The {name} can {skill}."]
    r.shuffle(sentences)
    end = r.choice(["That is why people like it.", "Is there anything else you want to know?"])
    return asked, f"The {name} is an animal that lives in the {home}. It is {colour}. {' '.join(sentences)} {end}"


def dish(r: random.Random) -> Chat:
    name, (a, b, c, minutes) = r.choice(list(DISHES.items()))
    asked = r.choice([f"How do I make {name}?", f"Give me a recipe for {name}."])
    end = r.choice(["Enjoy your meal!", f"Now the {name} is ready."])
    served = r.choice(["hot", "cold"])
    steps = f"1. Mix the {a} with the {b}.\n2. Add the {c}.\n3. Wait for {minutes} minutes.\n4. Serve it {served}."
    return asked, f"To make {name}, you need {a}, {b} and {c}.\n{steps}\n{end}"


def story(r: random.Random) -> Chat:
    name, beast, place = r.choice(NAMES), r.choice(list(ANIMALS)), r.choice(PLACES)
    home, _, food, skill = ANIMALS[beast]
    asked = r.choice([f"Write a story about {name} and a {beast}.", f"Tell a story about {name} and a {beast}."])
    met = f"One {r.choice(TIMES)}, {name} went to the {place} and met a {beast}."
    gift = f"{name} gave some {food} to the {beast}, and the {beast} was {r.choice(['happy', 'very happy', 'glad'])}."
    end = f"Then they went to the {home} together, because a {beast} can {skill}."
    return asked, f'{met} "Hello, {beast}!" said {name}. {gift} {end} The end.'


def count(r: random.Random) -> Chat:
    first, length = r.randint(1, 9), r.randint(4, 9)
    numbers = ", ".join(str(first + i) for i in range(length))
    return (
        f"Count from {first} to {first + length - 1}.",
        f"Here are the numbers: {numbers}. I counted {length} numbers.",
    )


KINDS: tuple[Callable[[random.Random], Chat], ...] = (animal, dish, story, story, count)


def chats(seed: int, number: int) -> list[Chat]:
    """``number`` chats, the same for the same seed."""
    r = random.Random(seed)
    return [r.choice(KINDS)(r) for _ in range(number)]
