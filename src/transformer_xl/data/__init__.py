"""From text on disk to ordered segments of lanes."""
