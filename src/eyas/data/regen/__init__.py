"""``eyas regen``: prompts in, chats out that the target answered itself, turn by turn."""
