"""The ApplicationMaster: the asyncio shell between `core.application`, which decides, and YARN."""
