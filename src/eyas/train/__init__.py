"""Features in, a draft out: training-time test, losses, accept length on held-out chats, and a run that can be killed."""
