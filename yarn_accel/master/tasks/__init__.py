"""The task service of a master: it carries out what `core.tasks.service` decides."""
