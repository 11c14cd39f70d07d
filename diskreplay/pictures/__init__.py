"""Pictures of what is in a store: sheets of frames, animations, charts, a page with all of it."""
