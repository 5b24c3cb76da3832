from hypothesis import settings

# The machine is shared: how long one example takes says nothing about the code.
settings.register_profile("analysis", deadline=None)
settings.load_profile("analysis")
