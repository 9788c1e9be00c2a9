"""The nouns of training data, which several stages read or write: chats, samples, features. No stage's logic."""
