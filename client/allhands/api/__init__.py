"""The faces of the core: plain calls, and asyncio."""
