"""The doors to what generates text, and to what it needs: the engine, its models, the machine."""
