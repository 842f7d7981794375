"""Decision code: frozen snapshot in, one decision per queued job out; nothing touches the world."""
