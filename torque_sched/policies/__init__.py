"""The scheduling brain: frozen snapshot in, one decision per queued job out; nothing touches the world."""
