"""Jobs over several sites."""
