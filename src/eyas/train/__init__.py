"""Features in, a draft out: training-time test, losses, accept length on held-out chats, a run that survives kills."""
