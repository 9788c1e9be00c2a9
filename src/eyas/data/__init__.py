"""The stage of data: prompts → chats → samples."""
