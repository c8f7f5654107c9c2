"""Ready settings for known applications, one TOML file each: ``presets = ["hermes"]``."""
