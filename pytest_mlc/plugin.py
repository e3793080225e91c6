"""The entry point that pytest loads: it names the plugin's parts and imports nothing of mlc."""

pytest_plugins = ("pytest_mlc.fixtures", "pytest_mlc.session")
