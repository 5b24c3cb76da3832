from tests.standin.fixture import own_standin, standin

__all__ = ["own_standin", "standin"]
