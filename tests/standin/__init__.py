"""A stand-in for vLLM's OpenAI-compatible server, for tests and for measuring the client.

``behaviour`` says what is answered and when, ``server`` answers (a process of its own:
``python -m tests.standin.server --port 8000``), ``process`` starts and stops it.
"""
