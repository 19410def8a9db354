"""Chat templates: render them safely, and derive from them how a model writes."""
