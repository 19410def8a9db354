"""Chat templates: rendering them safely, and reading from them how a model writes."""
